"""What else could rank wrong completions: influence by EK-FAC on the last checkpoint, embeddings, their neighbours."""

from __future__ import annotations

import copy
import logging
import tempfile
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.instructions import Items
from sgoif.influence.sequence_sets import pad_items
from sgoif.tasks.sequences import next_tokens, sequence_losses, token_losses

__all__ = ["disagree_with_neighbours", "embed", "find_outliers", "score_by_ekfac", "with_linear_layers"]

Floats = NDArray[np.float64]
_NEAREST = 10
_BATCH = 64


@torch.no_grad()
def embed(model: nn.Module, items: Items, *, prompts_only: bool, layer: int = -1) -> Floats:
    """Mean hidden state of every sequence, or of its prompt, by unit length, ``[N, d]``."""
    model.eval()
    found = []
    for start in range(0, len(items), _BATCH):
        batch = pad_items(items[start : start + _BATCH])
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        hidden = model(**inputs, output_hidden_states=True).hidden_states[layer]
        is_read = batch["attention_mask"].bool()
        if prompts_only:
            is_read = is_read & (batch["labels"] == -100)
        found.append((hidden * is_read[..., None]).sum(1))
    return nn.functional.normalize(torch.cat(found).double(), dim=1).numpy()


def find_outliers(rows: Floats) -> Floats:
    """Mean cosine distance to the nearest others."""
    return 1 - _nearest(rows)[0].mean(1)


def disagree_with_neighbours(rows: Floats, items: Items) -> Floats:
    """How little the completions of the nearest prompts share with one's own: one minus the mean F1 of their words."""
    near = _nearest(rows)[1]
    words = [Counter(item["labels"][item["labels"] != -100].tolist()) for item in items]
    return np.array([1 - np.mean([_f1(own, words[j]) for j in others]) for own, others in zip(words, near)])


def _nearest(rows: Floats) -> tuple[Floats, NDArray[np.int64]]:
    cosines = rows @ rows.T
    np.fill_diagonal(cosines, -np.inf)
    near = np.argpartition(-cosines, _NEAREST, axis=1)[:, :_NEAREST]
    return np.take_along_axis(cosines, near, 1), near


def _f1(own: Counter[int], other: Counter[int]) -> float:
    return 2 * sum((own & other).values()) / (sum(own.values()) + sum(other.values()))


def score_by_ekfac(model: nn.Module, items: Items, held: Items, seed: int = 0) -> Floats:
    """Harm to all evaluation sequences together by kronfluence's EK-FAC, over the linear layers of the blocks."""
    from kronfluence.analyzer import Analyzer, prepare_model
    from kronfluence.arguments import FactorArguments, ScoreArguments
    from kronfluence.task import Task

    class Completion(Task):  # type: ignore[misc]
        def compute_train_loss(self, batch: Any, model: nn.Module, sample: bool = False) -> Tensor:
            logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
            targets = next_tokens(batch["labels"], is_causal=True)
            if sample:
                drawn = torch.multinomial(logits.detach().flatten(0, 1).softmax(1), 1).view_as(targets)
                targets = torch.where(targets == -100, targets, drawn)
            return sequence_losses(token_losses(logits, targets)).sum()

        def compute_measurement(self, batch: Any, model: nn.Module) -> Tensor:
            return self.compute_train_loss(batch, model)

        def get_influence_tracked_modules(self) -> list[str]:
            return [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear) and ".h." in name]

    model = with_linear_layers(copy.deepcopy(model)).eval()
    torch.manual_seed(seed)  # the Fisher matrix samples its labels
    task, quiet = Completion(), {"log_level": logging.ERROR, "disable_tqdm": True}
    with tempfile.TemporaryDirectory() as folder:
        analyzer = Analyzer("sequences", prepare_model(model, task), task, cpu=True, output_dir=folder, **quiet)
        sizes: dict[str, Any] = {"per_device_batch_size": _BATCH}
        training, queries = _padded(items), _padded(held)
        strategy = FactorArguments(strategy="ekfac")
        analyzer.fit_all_factors("factors", training, factor_args=strategy, **sizes)
        sizes = {"per_device_query_batch_size": _BATCH, "per_device_train_batch_size": _BATCH}
        settings = ScoreArguments(damping_factor=None, aggregate_query_gradients=True)
        analyzer.compute_pairwise_scores("scores", "factors", queries, training, score_args=settings, **sizes)
        found: Tensor = analyzer.load_pairwise_scores("scores")["all_modules"]  # [1, N], positive where helpful
    return -found.sum(0).double().numpy()


def with_linear_layers(model: nn.Module) -> nn.Module:
    """The same model with GPT-2's transposed linear layers as ``nn.Linear``, which kronfluence knows."""
    from transformers.pytorch_utils import Conv1D

    for name, layer in list(model.named_modules()):
        if isinstance(layer, Conv1D):
            linear = nn.Linear(*layer.weight.shape)
            linear.load_state_dict({"weight": layer.weight.detach().T.clone(), "bias": layer.bias.detach().clone()})
            model.set_submodule(name, linear)
    return model


def _padded(items: Items) -> Sequence[dict[str, Tensor]]:
    """All items of one length, which the default collator can stack."""
    batch = pad_items(items)
    return [{name: values[place] for name, values in batch.items()} for place in range(len(items))]
