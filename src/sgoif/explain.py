"""From a bad prediction to the training examples behind it: joins what a model sees with the table people read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sgoif.adaptors.poison import Contrast, Nearest
from sgoif.errors import SgoifError
from sgoif.gradients import find_head
from sgoif.influence import HoldOut
from sgoif.training.behind import looks, mean_direction
from sgoif.training.models import cross_entropy, default_forward, plain_model, refuse_compiled
from sgoif.training.pairs import Pairs

__all__ = ["examples_behind"]

NUM_OBSERVED = 20_000  # examples from which curvature is measured, and those of a class that the line is drawn from


def examples_behind(
    model: nn.Module,
    dataset: Any,
    queries: Tensor,
    target: int,
    *,
    forward: Callable[[Any], Tensor] | None = None,
    head: str | None = None,
    class_names: Sequence[str] | None = None,
    batch_size: int = 256,
) -> dict[str, NDArray[Any]]:
    """Look at every training example that is labelled ``target``: one row each, in the order of the dataset.

    Curvature takes a pass over up to 20,000 examples of the dataset, the contrast one over as many of the class, the
    scores one over the whole class. Beyond the features of those 20,000, memory grows by the rows given back only.

    Args:
        model: trained; used in eval mode and left as found.
        dataset: the training examples, as in :func:`sgoif.audit`.
        queries: inputs ``[Q, ...]`` that the model takes for ``target``, and should not.
        target: the class.
        forward: as in :func:`sgoif.watch`.
        head: as in :func:`sgoif.watch`.
        class_names: for labels that are strings.
        batch_size: examples per forward pass.

    Returns:
        Columns id, given_label, score, influence, similarity and near_queries: see :meth:`sgoif.Run.explain`.
    """
    pairs = _pairs(model, dataset, queries, target, forward, head, class_names, batch_size)
    rows = torch.nonzero(pairs.examples.labels == target).flatten().cpu()
    if not len(rows):
        raise SgoifError(f"no training example is labelled {target}, so none can have taught it.")
    asked = _features(pairs, pairs.queries, torch.arange(len(pairs.queries)))
    contrast, direction = _contrast(pairs, rows, asked), mean_direction(pairs, NUM_OBSERVED)
    nearest, seen = Nearest(contrast.mean, asked), []
    for part in looks(pairs, pairs.examples, rows, direction):
        nearest.add(part.features)
        seen.append((contrast.score(part.features), part.influence, contrast.similarity(part.features)))
    score, influence, similarity = (np.concatenate(column) for column in zip(*seen, strict=True))
    near_queries = np.empty(len(rows), object)
    near_queries[:] = nearest.of_examples(len(rows))
    return {
        "id": np.array([pairs.examples.ids[int(i)] for i in rows]),
        "given_label": np.full(len(rows), target),
        "score": score,
        "influence": influence,
        "similarity": similarity,
        "near_queries": near_queries,
    }


def _pairs(
    model: nn.Module,
    dataset: Any,
    queries: Tensor,
    target: int,
    forward: Callable[[Any], Tensor] | None,
    head: str | None,
    class_names: Sequence[str] | None,
    batch_size: int,
) -> Pairs:
    model = plain_model(model)
    device = next(model.parameters()).device
    run_forward = forward or default_forward(model)
    found = find_head(model, lambda: run_forward(queries[:2].to(device)), name=head)
    refuse_compiled(model, found.module_name)
    classes = found.shape.outputs
    if not 0 <= target < classes:
        raise SgoifError(f"the model has classes 0 to {classes - 1}, got target={target}.")
    labels = torch.full((len(queries),), target)
    asked = HoldOut((queries, labels), num_classes=classes, device=device, role="queries")
    examples = HoldOut(dataset, num_classes=classes, device=device, class_names=class_names, role="dataset")
    return Pairs(model, [found], run_forward, cross_entropy(0.0), examples, asked, batch_size)


def _contrast(pairs: Pairs, rows: Tensor, asked: NDArray[np.float32]) -> Contrast:
    """Between the class, of which an evenly spaced sample is enough, and the queries."""
    count = min(NUM_OBSERVED, len(rows))
    sample = rows[torch.linspace(0, len(rows) - 1, count, dtype=torch.float64).round().long()]
    return Contrast.between(_features(pairs, pairs.examples, sample), asked)


def _features(pairs: Pairs, source: HoldOut, positions: Tensor) -> NDArray[np.float32]:
    """What the head sees of some examples, ``[n, D]``."""
    return np.concatenate([part.features for part in looks(pairs, source, positions)])
