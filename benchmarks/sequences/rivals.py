"""What else could rank wrong completions: influence by EK-FAC on the last checkpoint, embeddings, their neighbours."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.sequences import ekfac
from benchmarks.sequences.instructions import Items
from sgoif.influence.sequence_sets import pad_items

__all__ = ["disagree_with_neighbours", "embed", "find_outliers", "score_by_ekfac"]

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
    """Harm to all evaluation sequences together by EK-FAC, over the linear layers of the blocks."""
    model = ekfac.with_linear_layers(copy.deepcopy(model))
    modules = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear) and ".h." in name]
    found = ekfac.score_pairs(
        model, _padded(items), _padded(held), modules,
        dampings={"heuristic": ekfac.HEURISTIC}, seed=seed, batch=_BATCH, aggregate_query_gradients=True,
    )  # fmt: skip
    return found["heuristic"].sum(0).double().numpy()


def _padded(items: Items) -> Sequence[dict[str, Tensor]]:
    """All items of one length, which the default collator can stack."""
    batch = pad_items(items)
    return [{name: values[place] for name, values in batch.items()} for place in range(len(items))]
