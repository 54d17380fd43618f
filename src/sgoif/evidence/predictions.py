"""Mean predictions of examples, of which the most probable classes are kept: with many classes, a few of them.

A model of the noise asks which other classes an example may belong to, and how probable they are; nobody asks for the
thousandth. 20,000 examples of 1,000 classes take 4 MB in place of the 80 of a dense table, in memory, in a checkpoint
and in a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SgoifError
from sgoif.evidence.crossfit import DENSE_CLASSES
from sgoif.evidence.votes import LikelyOthers
from sgoif.types import Floats, Ints

__all__ = ["LargestPredictions", "PredictionSums"]

_KEPT = 16  # classes, of more than are all looked at


@dataclass(frozen=True, slots=True)
class LargestPredictions:
    """The most probable classes of some examples, best first.

    >>> found = LargestPredictions.of(np.array([[0.2, 0.5, 0.3]]))
    >>> found.labels.tolist(), found.others(np.array([0]), np.array([1])).labels.tolist()
    ([[1, 2, 0]], [[2, 0, -1]])
    """

    labels: NDArray[np.int32]  # [m, W], -1 where there are fewer
    probabilities: NDArray[np.float32]  # [m, W]

    @classmethod
    def of(cls, predictions: NDArray[np.floating[Any]]) -> LargestPredictions:
        """From whole predictions, ``[m, C]``."""
        sums = PredictionSums(*predictions.shape)
        sums.add(np.arange(len(predictions)), predictions, 1.0)
        return sums.mean()

    def others(self, rows: Ints, given: Ints) -> LikelyOthers:
        """The three most probable classes of some rows beside the labels that they are given, ``[n, 3]``."""
        labels, p = self.labels[rows].astype(np.int64), self.probabilities[rows].astype(np.float64)
        is_other = (labels >= 0) & (labels != given[:, None])
        order = np.argsort(~is_other, axis=1, kind="stable")[:, :3]
        is_other, labels, p = (np.take_along_axis(part, order, 1) for part in (is_other, labels, p))
        missing = ((0, 0), (0, 3 - order.shape[1]))  # with fewer classes than that
        return LikelyOthers(
            np.pad(np.where(is_other, labels, -1), missing, constant_values=-1),
            np.pad(np.where(is_other, p, 0.0), missing),
        )


class PredictionSums:
    """Weighted sums of predictions by example. Of more than 64 classes each example keeps the 16 with the largest sums.

    A class that comes among the 16 late lacks what was predicted of it before: little, or it would have been there.
    """

    def __init__(self, num_examples: int, num_classes: int) -> None:
        if num_classes < 1:
            raise SgoifError(f"num_classes must be at least 1, got {num_classes}.")
        width = num_classes if num_classes <= DENSE_CLASSES else _KEPT
        self._labels = np.full((num_examples, width), -1, np.int32)
        self._sums = np.zeros((num_examples, width))
        self._weights = np.zeros(num_examples)

    def add(self, rows: Ints, predictions: NDArray[np.floating[Any]], weight: float) -> None:
        """Add one prediction per row, ``[r, C]``; no row may come twice."""
        known, width = self._labels[rows].astype(np.int64), self._labels.shape[1]
        sums = self._sums[rows] + np.where(known >= 0, weight * np.take_along_axis(predictions, known, 1), 0.0)
        best = np.argpartition(-predictions, width - 1, axis=1)[:, :width]
        is_new = ~(best[:, :, None] == known[:, None]).any(2)
        labels = np.concatenate([known, np.where(is_new, best, -1)], 1)
        sums = np.concatenate([sums, np.where(is_new, weight * np.take_along_axis(predictions, best, 1), 0.0)], 1)
        kept = np.argsort(np.where(labels >= 0, -sums, np.inf), axis=1, kind="stable")[:, :width]
        self._labels[rows] = np.take_along_axis(labels, kept, 1)
        self._sums[rows] = np.take_along_axis(sums, kept, 1)
        self._weights[rows] += weight

    def mean(self) -> LargestPredictions:
        """The means; of equally probable classes the smaller one comes first."""
        sums = np.where(self._labels >= 0, self._sums, -1.0)
        order = np.lexsort((self._labels, -sums), axis=1)
        labels, sums = (np.take_along_axis(part, order, 1) for part in (self._labels, self._sums))
        means: Floats = sums / np.where(self._weights > 0, self._weights, 1.0)[:, None]
        return LargestPredictions(np.asarray(labels, np.int32), means.astype(np.float32))

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """The sums."""
        return {name: getattr(self, f"_{name}").copy() for name in ("labels", "sums", "weights")}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from saved sums."""
        self._labels, self._sums, self._weights = (state[name].copy() for name in ("labels", "sums", "weights"))
