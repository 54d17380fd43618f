"""Linear heads on frozen features: standardised, trained in seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from sgoif.errors import SgoifError

__all__ = ["standardised", "train_head"]

_BATCH = 250


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
    inputs: Tensor, targets: Tensor, rows: NDArray[np.int64], num_classes: int, *, epochs: int = 6, seed: int = 0
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
