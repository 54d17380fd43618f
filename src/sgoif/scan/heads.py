"""Linear heads on frozen features: standardised, trained in seconds, each scoring the examples it has not seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from sgoif.errors import SgoifError
from sgoif.evidence import Sketches
from sgoif.run import Run
from sgoif.scan.crossfit import Progress, cross_fitted_audit, no_progress
from sgoif.training.sinks import ScoreSink

__all__ = ["NUM_FOLDS", "audit_embeddings", "standardised", "train_head"]

NUM_FOLDS = 4
_BATCH = 250
_EPOCHS = 6


def audit_embeddings(
    rows: NDArray[np.floating[Any]],
    labels: NDArray[np.int64],
    ids: NDArray[Any],
    held: NDArray[np.bool_],
    *,
    num_classes: int,
    trusted: bool,
    epochs: int | None = None,
    seed: int = 0,
    sink: ScoreSink | None = None,
    facts: dict[str, Any] | None = None,
    sketches: Sketches | None = None,
    progress: Progress = no_progress,
) -> Run:
    """Score every example that is not held out by a linear head that has not seen it.

    Args:
        rows: embeddings, ``[N, D]``.
        labels: given classes, ``[N]``.
        ids: ``[N]``.
        held: which examples are the hold-out, ``[N]``.
        num_classes: ``C``.
        trusted: whether the hold-out's labels are verified.
        epochs: of each head's training.
        seed: of everything random.
        sink: where visits and tables go; None keeps them in memory.
        facts: for the run's information.
        sketches: by which copies are found.
        progress: told how far it is.
    """
    inputs, targets = standardised(rows, ~held), torch.from_numpy(labels)
    return cross_fitted_audit(
        lambda mine: train_head(inputs, targets, mine, num_classes, epochs=epochs or _EPOCHS, seed=seed),
        lambda mine: inputs[mine],
        targets,
        ids,
        held,
        num_classes=num_classes,
        num_folds=NUM_FOLDS,
        trusted=trusted,
        sink=sink,
        facts=facts or {},
        sketches=sketches,
        seed=seed,
        progress=progress,
    )


def standardised(features: NDArray[np.floating[Any]], rows: NDArray[np.bool_]) -> Tensor:
    """Scale every feature to mean 0 and deviation 1 over some rows.

    Raises:
        SgoifError: A row is not finite.
    """
    if not np.isfinite(features).all():
        bad = int((~np.isfinite(features).all(1)).sum())
        raise SgoifError(f"{bad} of {len(features)} rows of features are not finite; leave them out or mend them.")
    values = torch.from_numpy(np.ascontiguousarray(features, dtype=np.float32))
    mean, std = values[rows].mean(0), values[rows].std(0)
    return (values - mean) / (std + 1e-6)


def train_head(
    inputs: Tensor, targets: Tensor, rows: NDArray[np.int64], num_classes: int, *, epochs: int = _EPOCHS, seed: int = 0
) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """Train a linear head on some rows; returns it as a model, and its forward pass."""
    generator = torch.Generator().manual_seed(seed)
    head = nn.Linear(inputs.shape[1], num_classes)
    with torch.no_grad():
        head.weight.copy_(torch.randn(head.weight.shape, generator=generator) / inputs.shape[1] ** 0.5)
        head.bias.zero_()
    optimizer = torch.optim.Adam(head.parameters(), 1e-3, weight_decay=1e-4)
    mine = torch.from_numpy(rows)
    for _ in range(epochs):
        for batch in mine[torch.randperm(len(mine), generator=generator)].split(_BATCH):
            optimizer.zero_grad()
            F.cross_entropy(head(inputs[batch]), targets[batch]).backward()
            optimizer.step()
    model = nn.Sequential(head)
    return model, model
