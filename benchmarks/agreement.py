"""How far two sets of numbers agree: correlations column by column, and confidence held against the true error."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def pearson(first: ArrayLike, second: ArrayLike) -> NDArray[np.float64]:
    """Correlate two ``[n, K]`` arrays column by column, ``[K]``; 0 where a column is constant."""
    a, b = (_centre(values) for values in (first, second))
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


def ceiling(truth: NDArray[np.float64], correlate: Callable[..., NDArray[np.float64]] = pearson) -> float:
    """Estimate what a perfect forecast of noisy repeats ``[R, n, K]`` reaches: ``√r``, of the reliability ``r``.

    Agreement of two repeats, by Spearman-Brown for the mean of ``R``. Ranks are treated as if they were linear.
    """
    repeats = len(truth)
    pairs = [correlate(truth[a], truth[b]).mean() for a in range(repeats) for b in range(a)]
    agreement = max(float(np.mean(pairs)), 0.0)
    return float(np.sqrt(repeats * agreement / (1 + (repeats - 1) * agreement)))


def reliability(
    confidence: ArrayLike, measured: dict[str, NDArray[np.float64]], edges: Sequence[float] = (0, 0.25, 0.5, 0.75, 0.95)
) -> list[dict[str, Any]]:
    """Average measurements over bins ``(low, high]`` of confidence: exactly 0, then between the edges, up to 1."""
    values = np.asarray(confidence, dtype=np.float64)
    bins = []
    for low, high in itertools.pairwise([-math.inf, *edges, 1.0]):
        inside = (values > low) & (values <= high)
        means = {name: float(each[inside].mean()) if inside.any() else None for name, each in measured.items()}
        bins.append({"low": max(low, 0.0), "high": high, "count": int(inside.sum()), "means": means})
    return bins


def _columns(values: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    return array[:, None] if array.ndim == 1 else array


def _centre(values: ArrayLike) -> NDArray[np.float64]:
    columns = _columns(values)
    return columns - columns.mean(0)
