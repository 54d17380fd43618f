"""Votes for classes, kept sparse: an example is suggested a few classes in its life, however many there are.

A vote is a key ``row * K + class`` with a whole number for its weight. Sorted unique keys with integer sums are exact,
commutative and mergeable, and cost nothing for classes that nobody suggested: 20,000 classes are as cheap as ten.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sgoif.errors import SgoifError

__all__ = ["SuggestedLabels", "VoteCounts"]

_BUFFER = 1 << 16  # votes that wait unsorted; sorting them in one go keeps a step's cost at a copy


@dataclass(frozen=True, slots=True)
class SuggestedLabels:
    """The classes with most weight of votes per row, best first; equal weights go to the smaller class."""

    labels: NDArray[np.int64]  # [N, top], -1 where there are fewer
    counts: NDArray[np.int64]  # [N, top]
    total: NDArray[np.int64]  # [N], votes for any class

    def share(self) -> NDArray[np.float64]:
        """Each class's part of all votes, ``[N, top]``; 0 where there are none."""
        return np.asarray(self.counts / np.maximum(self.total, 1)[:, None])


class VoteCounts:
    """Counts of votes per (row, class).

    >>> votes = VoteCounts(num_classes=20_000)
    >>> votes.add([0, 0, 0, 2], [7, 19_999, 7, 3])
    >>> votes.top(num_rows=3, top=2).labels.tolist()
    [[7, 19999], [-1, -1], [3, -1]]
    """

    def __init__(self, num_classes: int) -> None:
        if num_classes < 1:
            raise SgoifError(f"num_classes must be at least 1, got {num_classes}.")
        self.num_classes = num_classes
        self._keys = np.empty(0, dtype=np.int64)  # sorted, unique
        self._counts = np.empty(0, dtype=np.int64)
        self._waiting: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._num_waiting = 0

    @property
    def keys(self) -> NDArray[np.int64]:
        """Sorted unique ``row * num_classes + class``."""
        self._settle()
        return self._keys

    @property
    def counts(self) -> NDArray[np.int64]:
        """Votes of each key."""
        self._settle()
        return self._counts

    def add(self, rows: ArrayLike, classes: ArrayLike, weights: ArrayLike | None = None) -> None:
        """Count one vote per entry, or as many as its weight, a whole number, says."""
        row, label = np.asarray(rows, dtype=np.int64), np.asarray(classes, dtype=np.int64)
        if row.shape != label.shape or row.ndim != 1:
            raise SgoifError(f"rows and classes are vectors of one length, got {row.shape} and {label.shape}.")
        if len(row) == 0:
            return
        if row.min() < 0 or label.min() < 0 or label.max() >= self.num_classes:
            raise SgoifError(
                f"votes need rows >= 0 and classes in 0..{self.num_classes - 1}, got rows from {row.min()} and classes "
                f"{label.min()}..{label.max()}; leave out visits that suggest nothing."
            )
        weight = np.ones(len(row), np.int64) if weights is None else np.asarray(weights, dtype=np.int64)
        self._waiting.append((row * self.num_classes + label, weight))
        self._num_waiting += len(row)
        if self._num_waiting > max(_BUFFER, len(self._keys)):  # sorting stays O(log n) per vote in all
            self._settle()

    def merge(self, other: VoteCounts, rows: NDArray[np.int64] | None = None) -> None:
        """Add another's counts; ``rows`` maps its rows to ours where the two number examples differently."""
        if other.num_classes != self.num_classes:
            raise SgoifError(f"cannot merge votes over {other.num_classes} classes into {self.num_classes}.")
        keys, counts = other.keys, other.counts
        if rows is not None:
            keys = rows[keys // self.num_classes] * self.num_classes + keys % self.num_classes
        self._settle()
        self._keys, self._counts = _sum_by_key(
            np.concatenate([self._keys, keys]), np.concatenate([self._counts, counts])
        )

    def top(self, num_rows: int, top: int = 3) -> SuggestedLabels:
        """Rank each row's classes by votes."""
        row, label, count = self.keys // self.num_classes, self._keys % self.num_classes, self.counts
        order = np.lexsort((label, -count, row))
        row, label, count = row[order], label[order], count[order]
        place = np.arange(len(row)) - np.searchsorted(row, row)  # 0 for the row's best class
        kept = (place < top) & (row < num_rows)
        labels = np.full((num_rows, top), -1, dtype=np.int64)
        counts = np.zeros((num_rows, top), dtype=np.int64)
        labels[row[kept], place[kept]] = label[kept]
        counts[row[kept], place[kept]] = count[kept]
        inside = row < num_rows
        total = np.bincount(row[inside], weights=count[inside], minlength=num_rows).astype(np.int64)
        return SuggestedLabels(labels, counts, total)

    def load(self, keys: ArrayLike, counts: ArrayLike) -> None:
        """Replace everything by stored keys and counts."""
        found, weights = np.asarray(keys, dtype=np.int64), np.asarray(counts, dtype=np.int64)
        self._waiting, self._num_waiting = [], 0
        self._keys, self._counts = _sum_by_key(found, weights)

    def _settle(self) -> None:
        if not self._waiting:
            return
        keys, weights = zip(*self._waiting, strict=True)
        self._waiting, self._num_waiting = [], 0
        self._keys, self._counts = _sum_by_key(
            np.concatenate([self._keys, *keys]), np.concatenate([self._counts, *weights])
        )


def _sum_by_key(keys: NDArray[np.int64], counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    unique, inverse = np.unique(keys, return_inverse=True)
    total = np.zeros(len(unique), dtype=np.int64)
    np.add.at(total, inverse.reshape(-1), counts)  # integers, so exact in any order
    return unique, total
