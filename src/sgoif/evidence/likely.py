"""Which other classes a model finds probable, kept sparse: at each visit the best one beside the given label.

What a visit keeps anyway, the probability of the given class and the runner-up with its own, says nearly all that a
model of the noise needs of a prediction. An example has few runners-up in its life, however many classes there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sgoif.evidence.votes import VoteCounts
from sgoif.types import Floats, Ints

__all__ = ["LikelyClasses", "LikelyOthers"]


_TOP = 3
_UNIT = 1 << 20  # of a probability that is summed in whole numbers, so that the order of visits does not matter


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
    def of_predictions(cls, probabilities: NDArray[np.floating[Any]], given: Ints) -> LikelyOthers:
        """Those of whole predictions, ``[N, C]``.

        >>> found = LikelyOthers.of_predictions(np.array([[0.5, 0.2, 0.3]]), np.array([0]))
        >>> found.labels.tolist(), found.probabilities.tolist()
        ([[2, 1, -1]], [[0.3, 0.2, 0.0]])
        """
        labels, p = np.full((len(given), _TOP), -1), np.zeros((len(given), _TOP))
        others = np.array(probabilities, dtype=np.float64)
        others[np.arange(len(given)), given] = -1.0
        width = min(_TOP, others.shape[1] - 1)
        labels[:, :width] = np.argsort(-others, axis=1, kind="stable")[:, :width]
        p[:, :width] = np.take_along_axis(others, labels[:, :width], 1)
        return cls(labels, p)

    @classmethod
    def from_columns(cls, columns: Mapping[str, NDArray[Any]]) -> LikelyOthers:
        """The inverse of :meth:`columns`."""
        tails = ["" if place == 0 else f"_{place + 1}" for place in range(_TOP)]
        labels = np.stack([columns[f"runner_up{tail}"] for tail in tails], 1).astype(np.int64)
        return cls(labels, np.stack([columns[f"p_runner_up{tail}"] for tail in tails], 1))

    def columns(self) -> dict[str, NDArray[Any]]:
        """As columns of a table: ``runner_up``, ``runner_up_2``, ..., and ``p_runner_up``, ..."""
        tails = ["" if place == 0 else f"_{place + 1}" for place in range(self.labels.shape[1])]
        labels = {f"runner_up{tail}": self.labels[:, i] for i, tail in enumerate(tails)}
        return labels | {f"p_runner_up{tail}": self.probabilities[:, i] for i, tail in enumerate(tails)}


class LikelyClasses:
    """Sums of the runners-up's probabilities, weighted by the gate: order-free and mergeable.

    >>> likely = LikelyClasses(num_classes=10)
    >>> likely.add([0, 0], p_given=[0.2, 0.4], margin=np.log([0.5, 1.0]), runner_up=[7, 3], weight=[1.0, 1.0])
    >>> found = likely.top(num_rows=1)
    >>> found.labels.tolist(), found.probabilities.round(2).tolist()
    ([[3, 7, -1]], [[0.2, 0.2, 0.0]])
    """

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self._votes = VoteCounts(num_classes + 1)  # the last one counts the weight of all visits

    def add(
        self, rows: ArrayLike, p_given: ArrayLike, margin: ArrayLike, runner_up: ArrayLike, weight: ArrayLike
    ) -> None:
        """Add one visit per entry; ``margin`` is the given class's log-probability above the runner-up's."""
        other, c = _runner_up(p_given, margin), np.asarray(weight, dtype=np.float64)
        usable = np.isfinite(other) & (c > 0) & (np.asarray(runner_up) >= 0)
        row, label = (np.asarray(values)[usable].astype(np.int64) for values in (rows, runner_up))
        whole = np.rint(c[usable] * _UNIT)
        self._votes.add(row, label, np.rint(whole * other[usable].clip(0, 1)).astype(np.int64))
        self._votes.add(row, np.full(len(row), self.num_classes), whole.astype(np.int64))

    def top(self, num_rows: int) -> LikelyOthers:
        """The three that were most probable on average."""
        found = self._votes.top(num_rows, _TOP + 1)  # the weight of all is never below that of a class
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
