"""What to expect of a review list: the share of errors among its first examples, with an interval.

The expected precision of the top k is the mean of their ``p_mislabeled``. It is uncertain because the hold-out is
small, because the share of errors is itself estimated, and, with a hold-out that cleaned itself, because it is not
known how well. The first two are drawn: each draw gives every hold-out example a random weight of mean one (the
Bayesian bootstrap, Rubin 1981), takes a few Newton steps from the fit, estimates the share of errors anew, and draws
the errors among the first k, so that the interval is one for what a review will find. The transition is not drawn
again, nor is the list. The third is the bracket of :mod:`sgoif.evidence.calibrate`: the
interval runs from the lower end of the calibration that takes labels as given to the upper end of the one that believes
the cleaned ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SgoifError
from sgoif.evidence.calibrate import CanaryCalibration, LabelCalibration
from sgoif.evidence.canaries import Canaries

__all__ = ["ExpectedPrecision", "expected_precision"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ExpectedPrecision:
    """The share of errors to expect among the first ``count`` examples of the list."""

    top: float  # share of all examples
    count: int
    value: float
    low: float
    high: float


def expected_precision(
    calibration: LabelCalibration,
    signals: Floats,
    given_label: Ints,
    top: Sequence[float] = (0.01, 0.05, 0.10),
    level: float = 0.9,
    num_draws: int = 40,
    seed: int = 0,
) -> list[ExpectedPrecision]:
    """Estimate the precision of the first 1, 5 and 10% of the list, with an interval.

    Args:
        calibration: From :func:`sgoif.evidence.calibrate`.
        signals: Of the training examples it was adapted to, ``[N, S]``.
        given_label: ``[N]``.
        top: Shares of the list.
        level: Of the interval.
        num_draws: Of the bootstrap; each costs about three Newton steps on the canaries.
        seed: Of the draws.
    """
    if not all(0 < share <= 1 for share in top) or not 0 < level < 1:
        raise SgoifError(f"top and level are shares inside (0, 1], got {list(top)} and {level}.")
    p = calibration.predict(signals, given_label)
    order = np.argsort(-p, kind="stable")
    counts = [math.ceil(share * len(p) - 1e-9 * len(p)) for share in top]
    means = [float(p[order[:count]].mean()) for count in counts]
    rng = np.random.default_rng(seed)
    draws = [_draw(calibration, signals, given_label, order, counts, rng) for _ in range(num_draws)]
    tail = (1 - level) / 2
    low = np.quantile([lower for lower, _ in draws], tail, axis=0)
    high = np.quantile([upper for _, upper in draws], 1 - tail, axis=0)
    return [
        ExpectedPrecision(share, count, mean, min(float(a), mean), max(float(b), mean))
        for share, count, mean, a, b in zip(top, counts, means, low, high)
    ]


def _draw(
    calibration: LabelCalibration,
    signals: Floats,
    given_label: Ints,
    order: Ints,
    counts: list[int],
    rng: np.random.Generator,
) -> tuple[list[float], list[float]]:
    """Draw hold-out weights, and compute the lower and the upper precision of each list under them."""
    canaries = calibration.canaries
    noise = rng.standard_exponential(int(canaries.holdout_row.max()) + 1)[canaries.holdout_row]
    fitted = _refit(replace(canaries, weight=canaries.weight * noise), calibration.believed)
    upper = fitted.with_prior(signals, given_label).predict(signals, given_label)
    lower = upper
    if calibration.as_given is not None:
        given = canaries.taken_as_given()
        fitted = _refit(replace(given, weight=given.weight * noise), calibration.as_given)
        lower = fitted.predict(signals, given_label)
    low, high = ([rng.binomial(k, p[order[:k]].mean()) / k for k in counts] for p in (lower, upper))
    return low, high


def _refit(canaries: Canaries, start: CanaryCalibration) -> CanaryCalibration:
    return CanaryCalibration.fit(
        canaries.signals,
        canaries.is_flip,
        canaries.weight,
        canaries.assigned_label,
        num_classes=canaries.num_classes,
        start=start,
    )
