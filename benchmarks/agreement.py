"""How far two sets of numbers agree: correlations column by column, and confidence held against the true error."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Bin", "pearson", "ranks", "reliability", "spearman"]


def pearson(first: ArrayLike, second: ArrayLike) -> NDArray[np.float64]:
    """Correlate two ``[n, K]`` arrays column by column, ``[K]``; 0 where a column is constant."""
    a, b = (_centred(values) for values in (first, second))
    sizes = np.sqrt(np.square(a).sum(0) * np.square(b).sum(0))
    return np.where(sizes > 0, (a * b).sum(0) / np.where(sizes > 0, sizes, 1.0), 0.0)


def spearman(first: ArrayLike, second: ArrayLike) -> NDArray[np.float64]:
    """Correlate the ranks of two ``[n, K]`` arrays column by column, ``[K]``; equal values share their mean rank."""
    return pearson(ranks(first), ranks(second))


def ranks(values: ArrayLike) -> NDArray[np.float64]:
    """Give the rank of each entry within its column, ``[n, K]``, counted from 0; equal values share their mean rank."""
    columns = _columns(values)
    out = np.empty(columns.shape)
    for k in range(columns.shape[1]):
        _, group, size = np.unique(columns[:, k], return_inverse=True, return_counts=True)
        out[:, k] = (np.cumsum(size) - (size + 1) / 2)[group]
    return out


@dataclass(frozen=True, slots=True)
class Bin:
    """What was measured where the confidence lay in ``(low, high]``."""

    low: float
    high: float
    count: int
    means: dict[str, float | None]  # by measurement; None in an empty bin

    def as_record(self) -> dict:
        return asdict(self)


def reliability(
    confidence: ArrayLike, measured: dict[str, NDArray[np.float64]], edges: Sequence[float] = (0, 0.25, 0.5, 0.75, 0.95)
) -> list[Bin]:
    """Average measurements over bins of confidence: exactly 0 first, then between the edges, up to 1."""
    values = np.asarray(confidence, dtype=np.float64)
    bounds = [-math.inf, *edges, 1.0]
    bins = []
    for low, high in itertools.pairwise(bounds):
        inside = (values > low) & (values <= high)
        means = {name: float(each[inside].mean()) if inside.any() else None for name, each in measured.items()}
        bins.append(Bin(max(low, 0.0), high, int(inside.sum()), means))
    return bins


def _columns(values: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    return array[:, None] if array.ndim == 1 else array


def _centred(values: ArrayLike) -> NDArray[np.float64]:
    columns = _columns(values)
    return columns - columns.mean(0)
