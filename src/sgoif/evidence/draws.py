"""How sure the probabilities are: draws of the calibration, and what they say of a group.

A probability is uncertain because the hold-out is small, and because the number of errors is itself estimated. Each
draw gives every hold-out example a random weight of mean one (the Bayesian bootstrap, Rubin 1981), takes a few Newton
steps from the fit and draws the number of errors anew.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sgoif.evidence.calibrate import CanaryCalibration, LabelCalibration, fit_canaries, predict_each
from sgoif.types import Floats, Ints

__all__ = [
    "CalibrationDraws",
    "ErrorRates",
    "draw_calibrations",
    "error_rates",
    "error_share",
]


_LEVEL = 0.9  # of every interval
_CHUNK = 1 << 17  # examples judged by all draws at once


@dataclass(frozen=True, slots=True)
class CalibrationDraws:
    """Calibrations that the hold-out might as well have given. A few numbers each, so that any example can be asked."""

    fits: tuple[CanaryCalibration, ...]

    def bounds(self, signals: Floats, given_label: Ints) -> tuple[Floats, Floats]:
        """Compute the 5% and 95% quantile of each example's ``p_mislabeled`` over the draws, ``[N]`` each."""
        low, high = np.empty(len(signals)), np.empty(len(signals))
        tail = (1 - _LEVEL) / 2
        for start in range(0, len(signals), _CHUNK):
            part = slice(start, start + _CHUNK)
            found = predict_each(self.fits, signals[part], given_label[part])
            low[part], high[part] = np.quantile(found, (tail, 1 - tail), axis=0)
        return low, high


def draw_calibrations(
    calibration: LabelCalibration, signals: Floats, given_label: Ints, num_draws: int = 40, seed: int = 0
) -> CalibrationDraws:
    """Draw calibrations by weighing the hold-out anew; each costs about three Newton steps on the canaries.

    Args:
        calibration: From :func:`sgoif.evidence.calibrate`.
        signals: Of the training examples it was adapted to, or of a sample of them, ``[N, S]``.
        given_label: ``[N]``.
        num_draws: How many.
        seed: Of the draws.
    """
    rng = np.random.default_rng(seed)
    canaries, fits = calibration.canaries, []
    for _ in range(num_draws):
        noise = rng.standard_exponential(int(canaries.holdout_row.max()) + 1)[canaries.holdout_row]
        fitted = fit_canaries(replace(canaries, weight=canaries.weight * noise), calibration.believed)
        fits.append(fitted.with_prior(signals, given_label))
    return CalibrationDraws(tuple(fits))


@dataclass(frozen=True, slots=True)
class ErrorRates:
    """Share of wrong labels in each group, ``[G]``, with a 90% interval; NaN where a group is empty."""

    count: Ints
    rate: Floats
    low: Floats
    high: Floats


def error_rates(p: Floats, low: Floats, high: Floats, groups: Ints, num_groups: int) -> ErrorRates:
    """Add up examples by group.

    The interval takes the draws' bounds of all examples together, since a draw moves them all one way, and adds the
    chance that is left when every probability is right, ``√(Σ p (1 - p)) / n``.

    Args:
        p: ``p_mislabeled``, ``[N]``; NaN where an example was not judged.
        low: Of each, from :meth:`CalibrationDraws.bounds`.
        high: Likewise.
        groups: ``[N]``, in ``0..G-1``; negative ones are left out.
        num_groups: ``G``.

    >>> rates = error_rates(np.array([0.0, 1.0]), np.array([0.0, 1.0]), np.array([0.0, 1.0]), np.array([0, 0]), 1)
    >>> rates.rate.tolist(), rates.low.tolist()
    ([0.5], [0.5])
    """
    known = np.isfinite(p) & (groups >= 0)
    place, p, low, high = groups[known], p[known], low[known], high[known]

    def mean(values: Floats) -> Floats:
        return np.bincount(place, weights=values, minlength=num_groups) / np.where(count > 0, count, np.nan)

    count = np.bincount(place, minlength=num_groups)
    chance = 1.645 * np.sqrt(mean(p * (1 - p)) / np.maximum(count, 1))
    rate = mean(p)
    lowest = np.clip(np.minimum(mean(low), rate) - chance, 0, 1)
    return ErrorRates(count, rate, lowest, np.clip(np.maximum(mean(high), rate) + chance, 0, 1))


def error_share(p: Floats, low: Floats, high: Floats, most_wrong: float | None) -> tuple[float, float, float]:
    """The share of wrong labels among all that were judged, and its range: the one figure that is printed everywhere.

    Args:
        p: ``p_mislabeled``, ``[N]``; NaN where an example was not judged.
        low: of each.
        high: of each.
        most_wrong: the share of labels that the model contradicts at most. Each may be its own mistake or a wrong
            label, and nothing tells which: up to all of them may be wrong. None where labels were verified.
    """
    found = error_rates(p, low, high, np.zeros(len(p), np.int64), 1)
    rate, least, most = (float(values[0]) for values in (found.rate, found.low, found.high))
    return rate, least, most if most_wrong is None else max(most, most_wrong)
