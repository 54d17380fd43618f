"""Two normal components on a line: the harmless and the harmful, told apart without labels.

Plain expectation-maximisation, made repeatable and hard to derail: it starts from the best cut into two groups (exact
in one dimension), keeps each variance above a floor, and its posterior only ever grows with the value.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sgoif.errors import SgoifError

__all__ = ["TwoNormals", "fit_two_normals"]

Floats = NDArray[np.float64]

_VARIANCE_FLOOR = 1e-3  # of the variance of all values: keeps a component from closing in on a few equal values


@dataclass(frozen=True, slots=True)
class TwoNormals:
    """A mixture ``share₀ N(mean₀, variance₀) + share₁ N(mean₁, variance₁)`` with ``mean₀ <= mean₁``."""

    shares: Floats  # [2]
    means: Floats  # [2]
    variances: Floats  # [2]
    gain: float  # log-likelihood above that of a single normal, per value

    @property
    def separation(self) -> float:
        """Distance of the means in units of the mean standard deviation (Ashman's D is √2 times this, at most)."""
        return float((self.means[1] - self.means[0]) / np.sqrt(self.variances).mean())

    def probability_high(self, values: ArrayLike) -> Floats:
        """Compute the posterior of the upper component.

        Between the two means the posterior of any two normals grows; beyond them the wider one may win on both sides,
        which would call the most harmless values harmful. Values are therefore moved to the nearer mean first.
        """
        x = np.clip(np.asarray(values, dtype=np.float64), self.means[0], self.means[1])
        return np.asarray(np.exp(_log_parts(x, self) - _log_sum(_log_parts(x, self)))[1])


def fit_two_normals(values: ArrayLike, max_iterations: int = 200, tolerance: float = 1e-8) -> TwoNormals:
    """Fit the mixture by EM until the mean log-likelihood moves by less than ``tolerance``.

    >>> found = fit_two_normals([0.0, 0.1, -0.1, 0.05, 5.0, 5.1, 4.9])
    >>> found.means.round(2).tolist(), found.shares.round(2).tolist()
    ([0.01, 5.0], [0.57, 0.43])
    """
    x = np.sort(np.asarray(values, dtype=np.float64))
    if x.ndim != 1 or len(x) < 4 or not np.isfinite(x).all():
        raise SgoifError(f"a mixture needs a vector of at least 4 finite values, got shape {x.shape}.")
    spread = float(x.var())
    if not spread > 0:
        raise SgoifError(f"all {len(x)} values are {x[0]}; there is nothing to tell apart.")
    floor = _VARIANCE_FLOOR * spread
    posterior = np.zeros((2, len(x)))
    cut = _best_cut(x)
    posterior[0, :cut], posterior[1, cut:] = 1.0, 1.0
    single = -0.5 * (np.log(2 * np.pi * spread) + 1)
    previous, found = -np.inf, _maximise(x, posterior, floor, single)
    for _ in range(max_iterations):
        log_parts = _log_parts(x, found)
        log_total = _log_sum(log_parts)
        current = float(log_total.mean())
        if current - previous < tolerance:
            break
        previous = current
        found = _maximise(x, np.exp(log_parts - log_total), floor, current - single)
    if found.means[0] > found.means[1]:
        return TwoNormals(found.shares[::-1], found.means[::-1], found.variances[::-1], found.gain)
    return found


def _maximise(x: Floats, posterior: Floats, floor: float, gain: float) -> TwoNormals:
    total = np.maximum(posterior.sum(axis=1), 1e-12)
    means = posterior @ x / total
    variances = np.maximum((posterior * (x - means[:, None]) ** 2).sum(axis=1) / total, floor)
    return TwoNormals(total / total.sum(), means, variances, gain)


def _best_cut(x: Floats) -> int:
    """Find where to cut sorted values so that the variance between the two groups is largest."""
    size = np.arange(1, len(x))
    left = np.cumsum(x)[:-1]
    between = (left / size - (x.sum() - left) / (len(x) - size)) ** 2 * size * (len(x) - size)
    return int(between.argmax()) + 1


def _log_parts(x: Floats, mixture: TwoNormals) -> Floats:
    variance = mixture.variances[:, None]
    return np.asarray(
        np.log(mixture.shares)[:, None]
        - 0.5 * (np.log(2 * np.pi * variance) + (x[None] - mixture.means[:, None]) ** 2 / variance)
    )


def _log_sum(log_parts: Floats) -> Floats:
    largest = log_parts.max(axis=0)
    return np.asarray(largest + np.log(np.exp(log_parts - largest).sum(axis=0)))
