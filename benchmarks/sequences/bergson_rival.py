"""Harm by bergson of a finished model: K-FAC, EK-FAC and TrackStar.

bergson has requirements of its own, so it runs in an interpreter of its own, which ``BERGSON_PYTHON`` names: this file
is also the program that runs there. bergson reads a model by its folder and pre-tokenised datasets, but asks for a
tokenizer in any case, so it is given one that is never used.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from benchmarks.sequences.attributors import Scores, Trained

__all__ = ["attribute_bergson", "find_version"]

DEFAULT = {"inversion": "damped_inverse", "damping_factor": 0.1}  # a tenth of each layer's mean eigenvalue
TINY = {"inversion": "absolute_damped_inverse", "damping_factor": 1e-8}  # as kronfluence's default

# By name: whether eigenvalues of the Kronecker factors are corrected, and how these are inverted.
VARIANTS: dict[str, tuple[bool, Mapping[str, Any]]] = {
    "K-FAC, default damping": (False, DEFAULT),
    "EK-FAC, default damping": (True, DEFAULT),
    "EK-FAC, damping 1e-8": (True, TINY),
}
# By name: whether gradients are normalised, and whether the queries' own second moments are mixed into those of the
# training sequences.
TRACKSTAR = {
    "TrackStar": (False, True),  # all defaults of bergson's command
    "TrackStar, unit norm, unmixed": (True, False),
}


def find_version() -> str | None:
    """The version of bergson in its interpreter; None where no interpreter is named."""
    if "BERGSON_PYTHON" not in os.environ:
        return None
    asked = "from importlib.metadata import version; print(version('bergson'))"
    found = subprocess.run([os.environ["BERGSON_PYTHON"], "-c", asked], check=True, capture_output=True, text=True)
    return found.stdout.strip()


def attribute_bergson(trained: Trained) -> dict[str, Scores]:
    """Scores ``[n, V]`` by method and layers, positive where a training sequence harms a passage; of a GPT-2."""
    layers = {name: list(modules) for name, modules in trained.layers.items() if name != "output layer"}
    queries = trained.passages.flatten(0, 1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trained.model.save_pretrained(folder / "model")  # type: ignore[operator]
        np.savez(folder / "tokens.npz", train=trained.train.numpy(), queries=queries.numpy())
        (folder / "layers.json").write_text(json.dumps(layers))
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "datasets")}
        environment.pop("PYTHONPATH", None)
        subprocess.run([os.environ["BERGSON_PYTHON"], __file__, name], check=True, env=environment)
        shape = len(trained.train), len(trained.passages), -1
        with np.load(folder / "scores.npz") as found:
            return {
                f"bergson {key}": -values.astype(np.float64).reshape(shape).mean(2) for key, values in found.items()
            }


# In bergson's interpreter.


def work(folder: Path) -> None:
    """Compute the scores of all layers that are asked for."""
    linear, found = prepare(folder), {}
    for part, modules in json.loads((folder / "layers.json").read_text()).items():
        others = ",".join(name for name in linear if name not in modules)
        place = folder / part.replace(" ", "_")
        for name, values in score_part(folder, place, others or None).items():
            found[f"{name}, {part}"] = values
    np.savez(folder / "scores.npz", **found)


def prepare(folder: Path) -> list[str]:
    """Write the datasets and a tokenizer; returns the names of all linear layers.

    bergson collects from the layers of ``model.base_model``, among which the output layer is not; for the model that is
    registered here, that is the whole model.
    """
    from datasets import Dataset
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    class WithHead(GPT2LMHeadModel):
        config_class = GPT2Config
        base_model = property(lambda self: self)

        def get_input_embeddings(self) -> Any:
            return self.transformer.wte

    AutoModelForCausalLM.register(GPT2Config, WithHead, exist_ok=True)
    model = AutoModelForCausalLM.from_pretrained(str(folder / "model"))
    assert isinstance(model, WithHead)
    count = model.config.vocab_size
    tokenizer = Tokenizer(WordLevel({str(number): number for number in range(count)}, unk_token="0"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=model.config.n_positions).save_pretrained(
        folder / "model"
    )
    tokens = np.load(folder / "tokens.npz")
    for name in ("train", "queries"):
        rows = tokens[name].tolist()
        Dataset.from_dict({"input_ids": rows, "labels": rows}).save_to_disk(str(folder / name))
    kinds = ("Linear", "Conv1D")
    return [name for name, layer in model.named_modules() if type(layer).__name__ in kinds]


def score_part(folder: Path, place: Path, others: str | None) -> dict[str, Any]:
    """All scores for one choice of layers, ``[n, queries]``; positive where a sequence helps."""
    import torch
    from bergson import DataConfig, IndexConfig, PreprocessConfig, QuerySetConfig, ScoreConfig
    from bergson.build import build_query
    from bergson.cli.trackstar import trackstar
    from bergson.config.config import HessianConfig, InversionConfig, TrackstarConfig, TrackstarIndexConfig
    from bergson.data import load_scores
    from bergson.hessians.hessian_approximations import approximate_hessians
    from bergson.score.score import score_dataset

    length = np.load(folder / "tokens.npz")["train"].shape[1]

    def index(name: str, kind: Any = IndexConfig, **options: Any) -> Any:
        # more tokens in a batch than the model has positions are refused
        return kind(
            run_path=str(place / name), overwrite=True, model=str(folder / "model"), include_bias=True,
            data=DataConfig(dataset=str(folder / "train")), filter_modules=others, token_batch_size=length, **options,
        )  # fmt: skip

    asked = QuerySetConfig(dataset=str(folder / "queries"))
    build_query(index("query"), asked, PreprocessConfig())
    torch.manual_seed(0)  # labels are drawn from the model
    fitted = approximate_hessians(index("kfac"), HessianConfig(method="kfac", ev_correction=True))
    found = {}
    for name, (is_corrected, inversion) in VARIANTS.items():
        config = index(f"scores {name}")
        preprocess = PreprocessConfig(
            hessian_path=fitted, ev_correction=is_corrected, inversion_cfg=InversionConfig(**inversion)
        )
        score_dataset(config, ScoreConfig(query_path=str(place / "query")), preprocess)
        found[name] = np.array(load_scores(Path(config.run_path))[:])
    for name, (is_unit, is_mixed) in TRACKSTAR.items():
        config = index(name, TrackstarIndexConfig)
        torch.manual_seed(0)
        preprocess = PreprocessConfig(unit_normalize=is_unit)
        trackstar(config, TrackstarConfig(query=asked, preprocess_cfg=preprocess, mix_hessians=is_mixed))
        found[name] = np.array(load_scores(Path(config.run_path) / "scores")[:])
    return found


if __name__ == "__main__":
    work(Path(sys.argv[1]))
