"""Examples in folds: a model is trained on all folds but one, and predicts that one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

__all__ = ["Folds", "Forward", "Progress", "Rows", "Trainer", "no_progress"]

Rows = NDArray[np.int64]
Progress = Callable[[str, int, int], None]  # what is done, how much of it, how much there is
Forward = Callable[[Tensor], Tensor]
Trainer = Callable[[Rows], tuple[nn.Module, Forward]]  # rows to a model

_BATCH = 1000


def no_progress(stage: str, done: int, total: int) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True)
class Folds:
    """Examples in folds, and how to train a model on all folds but one."""

    train: Trainer
    inputs: Callable[[Rows], Tensor]
    labels: Tensor
    rows: Sequence[Rows]  # by fold
    num_classes: int

    def train_all(self) -> Iterator[tuple[nn.Module, Forward]]:
        """Train one model per fold, on the others; a single fold is trained on itself."""
        for number in range(len(self.rows)):
            others = [rows for other, rows in enumerate(self.rows) if other != number or len(self.rows) == 1]
            yield self.train(np.sort(np.concatenate(others)))

    def predict(self, rows: Rows, forward: Forward) -> NDArray[np.float32]:
        """Predict any examples, ``[n, C]``."""
        found = np.empty((len(rows), self.num_classes), np.float32)
        with torch.no_grad():
            for first in range(0, len(rows), _BATCH):
                mine = rows[first : first + _BATCH]
                found[first : first + _BATCH] = forward(self.inputs(mine)).softmax(1).numpy()
        return found
