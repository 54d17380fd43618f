"""Votes for classes, kept sparse: an example is suggested a few classes in its life, however many there are.

:class:`LikelyClasses` adds up which other classes a model finds probable, at each visit the best one beside the given
label: that says nearly all that a model of the noise needs of a prediction. A vote is a key ``row * K + class`` with a
whole number for its weight. Sorted unique keys with integer sums are exact, commutative, and cost nothing for classes
that nobody suggested: 20,000 classes are as cheap as ten.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sgoif.errors import SgoifError
from sgoif.types import Floats, Ints

__all__ = ["LikelyClasses", "LikelyOthers", "SuggestedLabels", "VoteCounts"]

_TOP = 3
_TAILS = ("", "_2", "_3")  # of the columns of a table
_UNIT = 1 << 20  # of a probability that is summed in whole numbers, so that the order of visits does not matter
_BUFFER = 1 << 16  # votes that wait unsorted; sorting them in one go keeps a step's cost at a copy


@dataclass(frozen=True, slots=True)
class SuggestedLabels:
    """The classes with most weight of votes per row, best first; equal weights go to the smaller class."""

    labels: Ints  # [N, top], -1 where there are fewer
    counts: Ints  # [N, top]
    total: Ints  # [N], votes for any class

    def share(self) -> Floats:
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
        self._waiting: list[tuple[Ints, Ints]] = []
        self._num_waiting = 0

    @property
    def keys(self) -> Ints:
        """Sorted unique ``row * num_classes + class``."""
        self._settle()
        return self._keys

    @property
    def counts(self) -> Ints:
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


def _sum_by_key(keys: Ints, counts: Ints) -> tuple[Ints, Ints]:
    unique, inverse = np.unique(keys, return_inverse=True)
    total = np.zeros(len(unique), dtype=np.int64)
    np.add.at(total, inverse.reshape(-1), counts)  # integers, so exact in any order
    return unique, total


@dataclass(frozen=True, slots=True)
class LikelyOthers:
    """The most probable classes beside the given one, best first, with their mean probabilities."""

    labels: Ints  # [N, 3], -1 where there are fewer
    probabilities: Floats  # [N, 3]

    @classmethod
    def of_visit(cls, p_given: ArrayLike, margin: ArrayLike, runner_up: ArrayLike) -> LikelyOthers:
        """Those of a single visit, as :class:`LikelyClasses` would have them."""
        label, p = np.asarray(runner_up).astype(np.int64), _runner_up(p_given, margin)
        known = np.isfinite(p) & (label >= 0)
        whole = np.rint(_UNIT * np.where(known, p, 0.0).clip(0, 1)) / _UNIT
        labels, probabilities = np.full((len(label), _TOP), -1), np.zeros((len(label), _TOP))
        labels[:, 0], probabilities[:, 0] = np.where(whole > 0, label, -1), whole
        return cls(labels, probabilities)

    @classmethod
    def from_columns(cls, columns: Mapping[str, NDArray[Any]]) -> LikelyOthers:
        """The inverse of :meth:`columns`."""
        labels = np.stack([columns[f"runner_up{tail}"] for tail in _TAILS], 1).astype(np.int64)
        return cls(labels, np.stack([columns[f"p_runner_up{tail}"] for tail in _TAILS], 1))

    def columns(self) -> dict[str, NDArray[Any]]:
        """As columns of a table: ``runner_up``, ``runner_up_2``, ..., and ``p_runner_up``, ..."""
        labels = {f"runner_up{tail}": self.labels[:, i] for i, tail in enumerate(_TAILS)}
        return labels | {f"p_runner_up{tail}": self.probabilities[:, i] for i, tail in enumerate(_TAILS)}


class LikelyClasses:
    """Sums of the runners-up's probabilities over visits: order-free.

    >>> likely = LikelyClasses(num_classes=10)
    >>> likely.add([0, 0], p_given=[0.2, 0.4], margin=np.log([0.5, 1.0]), runner_up=[7, 3], usable=[True, True])
    >>> found = likely.top(num_rows=1)
    >>> found.labels.tolist(), found.probabilities.round(2).tolist()
    ([[3, 7, -1]], [[0.2, 0.2, 0.0]])
    """

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self._votes = VoteCounts(num_classes + 1)  # the last one counts all visits

    def add(
        self, rows: ArrayLike, p_given: ArrayLike, margin: ArrayLike, runner_up: ArrayLike, usable: ArrayLike
    ) -> None:
        """Add one visit per entry; ``margin`` is the given class's log-probability above the runner-up's."""
        other = _runner_up(p_given, margin)
        kept = np.isfinite(other) & np.asarray(usable, dtype=bool) & (np.asarray(runner_up) >= 0)
        row, label = (np.asarray(values)[kept].astype(np.int64) for values in (rows, runner_up))
        self._votes.add(row, label, np.rint(_UNIT * other[kept].clip(0, 1)).astype(np.int64))
        self._votes.add(row, np.full(len(row), self.num_classes), np.full(len(row), _UNIT))

    def top(self, num_rows: int) -> LikelyOthers:
        """The three that were most probable on average."""
        found = self._votes.top(num_rows, _TOP + 1)  # the count of all is never below that of a class
        is_class = (found.labels >= 0) & (found.labels < self.num_classes)
        weight = np.where(found.labels == self.num_classes, found.counts, 0).sum(1, keepdims=True)
        # The count of all is moved to the end, the others keep their order.
        order = np.argsort(~is_class, axis=1, kind="stable")[:, :_TOP]
        labels, counts = (np.take_along_axis(values, order, 1) for values in (found.labels, found.counts))
        kept = np.take_along_axis(is_class, order, 1) & (counts > 0)
        return LikelyOthers(np.where(kept, labels, -1), np.where(kept, counts / np.maximum(weight, 1), 0.0))

    def state_dict(self) -> dict[str, Any]:
        """The sums."""
        return {"keys": self._votes.keys.copy(), "counts": self._votes.counts.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from saved sums."""
        self._votes.load(state["keys"], state["counts"])


def _runner_up(p_given: ArrayLike, margin: ArrayLike) -> Floats:
    """The runner-up's probability; ``margin`` is of log-probabilities."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(p_given, dtype=np.float64) * np.exp(-np.asarray(margin, dtype=np.float64))
