"""The statistics that several checks share: intervals, corrections for many tests, and p-values in a tail.

Only numpy: scipy is not a dependency of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.types import Floats

__all__ = [
    "make_rng",
    "permutation_p",
    "select_discoveries",
    "share_interval",
    "tail_p_values",
    "upper_normal",
]

_Z = 1.959964  # of a 95% interval
_BODY, _CENSORED = 0.5, 0.9  # quantiles between which the tail is fitted; what lies above is only counted
_ENOUGH_LARGER = 20
_FITTED = 50_000  # values that it is fitted to at most
_NORMAL_SHAPE = 1.25  # of the Weibull tail that is nearest to the upper half of a normal distribution


def share_interval(count: int, total: int) -> tuple[float, float]:
    """Wilson's 95% interval of a share.

    >>> [round(end, 3) for end in share_interval(5, 100)], share_interval(0, 0)
    ([0.022, 0.112], (0.0, 1.0))
    """
    if not total:
        return 0.0, 1.0
    share, square = count / total, _Z**2 / total
    middle = (share + square / 2) / (1 + square)
    half = _Z / (1 + square) * math.sqrt(share * (1 - share) / total + square / (4 * total))
    return max(0.0, middle - half), min(1.0, middle + half)


def upper_normal(z: float) -> float:
    """Probability that a standard normal exceeds ``z``."""
    return 0.5 * math.erfc(z / math.sqrt(2))


def select_discoveries(p: Floats, rate: float) -> NDArray[np.bool_]:
    """Benjamini and Hochberg's step-up: at most the share ``rate`` of what is selected is expected to be false.

    >>> select_discoveries(np.array([0.001, 0.5, 0.02, 0.9]), 0.1).tolist()
    [True, False, True, False]
    """
    order = np.argsort(p, kind="stable")
    below = np.flatnonzero(p[order] <= rate * np.arange(1, len(p) + 1) / max(len(p), 1))
    selected = np.zeros(len(p), bool)
    if len(below):
        selected[order[: below[-1] + 1]] = True
    return selected


def permutation_p(seen: float, draw: Callable[[], float], most: int = 999) -> float:
    """The p-value of a statistic among its values under random permutations; valid for any data.

    Stops at the twentieth value that is as large (Besag and Clifford, 1991), since then p is known to be no small one.
    """
    larger = 0
    for done in range(1, most + 1):
        larger += draw() >= seen
        if larger == _ENOUGH_LARGER:
            return larger / done
    return (1 + larger) / (most + 1)


def make_rng(seed: int, check: str) -> np.random.Generator:
    """A generator of a check's own, lest it repeat the permutation by which somebody shuffled the data."""
    return np.random.default_rng([seed, *check.encode()])


def tail_p_values(values: NDArray[Any]) -> Floats:
    """How probable a value at least this large is, if the upper tail goes on as the upper half begins.

    A Weibull tail ``P(X - m > x) = exp(-(x / s)^k) / 2`` above the median ``m`` is fitted to what lies between the
    median and the 90% quantile; of the values above only their number is used, so that up to a tenth of outliers cannot
    hide themselves. A tail thinner than a normal one is taken for a normal one, which keeps false alarms rare.

    Values at or below the median get 1.
    """
    values = np.asarray(values, np.float64)
    start, end = np.quantile(values, [_BODY, _CENSORED])
    p = np.ones(len(values))
    if not end > start:  # many values are equal: there is no tail to fit
        return p
    step = max(1, len(values) // _FITTED)
    sample = values[::step]
    inside = (sample[(sample > start) & (sample <= end)] - start) / (end - start)
    shape, log_scale = _fit_tail(inside, int((sample > end).sum()))
    above = values > start
    p[above] = (1 - _BODY) * np.exp(-np.exp(shape * (np.log((values[above] - start) / (end - start)) - log_scale)))
    return p


def _fit_tail(inside: Floats, num_above: int) -> tuple[float, float]:
    """Shape and log scale of a Weibull distribution by maximum likelihood, values above 1 censored."""
    best, logs = (-math.inf, 1.0, 0.0), np.log(inside)
    for shape in np.linspace(0.4, _NORMAL_SHAPE, 21).tolist():
        # given the shape, the best scale has a closed form: the mean of x^k over what is not censored
        mean = (np.exp(shape * logs).sum() + num_above) / max(len(inside), 1)
        fitted = len(inside) * (math.log(shape) - math.log(mean) - 1) + (shape - 1) * float(logs.sum())
        if fitted > best[0]:
            best = (fitted, shape, math.log(mean) / shape)
    return best[1], best[2]
