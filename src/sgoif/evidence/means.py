"""Weighted means of many signals per example, for 8 bytes a signal: the slim companion of :class:`Evidence`.

What the calibration needs of a visit is only its gate-weighted mean; variances, extremes and latest values of fifteen
signals would cost a kilobyte per example, and a dataset has millions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sgoif.errors import SgoifError

__all__ = ["WeightedMeans"]


class WeightedMeans:
    """Sums ``Σ c x`` and ``Σ c`` per row: order-free and mergeable.

    A visit whose values are not all finite, or whose weight is zero, adds nothing.

    >>> means = WeightedMeans(["loss", "margin"])
    >>> means.add([0, 1, 0], [[1.0, 2.0], [5.0, 5.0], [3.0, 0.0]], [1.0, 1.0, 3.0])
    >>> means.mean("loss").tolist()
    [2.5, 5.0]
    """

    def __init__(self, signals: Sequence[str]) -> None:
        self.signals = tuple(signals)
        self._sums = np.zeros((0, len(self.signals)))
        self._mass = np.zeros(0)
        self._num_rows = 0

    def __len__(self) -> int:
        return self._num_rows

    def add(self, rows: ArrayLike, values: ArrayLike, weight: ArrayLike) -> None:
        """Add one visit per entry: values ``[B, S]``, weights ``[B]``."""
        row = np.asarray(rows, dtype=np.int64)
        x = np.asarray(values, dtype=np.float64)
        c = np.broadcast_to(np.asarray(weight, dtype=np.float64), row.shape)
        if x.shape != (len(row), len(self.signals)):
            raise SgoifError(f"values need the shape {(len(row), len(self.signals))}, got {x.shape}.")
        used = np.isfinite(x).all(1) & (c > 0)
        if len(row):
            self._grow(int(row.max()) + 1)
        row, x, c = row[used], x[used], c[used]
        np.add.at(self._sums, row, c[:, None] * x)
        np.add.at(self._mass, row, c)

    def merge(self, other: WeightedMeans) -> None:
        """Add what another gathered on the same signals and rows."""
        if other.signals != self.signals:
            raise SgoifError(f"signals differ: {self.signals} and {other.signals}.")
        self._grow(len(other))
        self._sums[: len(other)] += other._sums[: len(other)]
        self._mass[: len(other)] += other._mass[: len(other)]

    def mean(self, signal: str) -> NDArray[np.float64]:
        """The weighted mean of one signal by row; NaN where nothing was added."""
        column = self._sums[: self._num_rows, self.signals.index(signal)]
        mass = self._mass[: self._num_rows]
        return np.where(mass > 0, column / np.where(mass > 0, mass, 1.0), np.nan)

    def state_dict(self) -> dict[str, Any]:
        """The sums."""
        return {"sums": self._sums[: self._num_rows].copy(), "mass": self._mass[: self._num_rows].copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from saved sums."""
        self._sums, self._mass = np.array(state["sums"]), np.array(state["mass"])
        self._num_rows = len(self._mass)

    def _grow(self, num_rows: int) -> None:
        if num_rows > len(self._mass):
            size = max(num_rows, 2 * len(self._mass))
            sums, mass = np.zeros((size, len(self.signals))), np.zeros(size)
            sums[: self._num_rows], mass[: self._num_rows] = self._sums[: self._num_rows], self._mass[: self._num_rows]
            self._sums, self._mass = sums, mass
        self._num_rows = max(self._num_rows, num_rows)
