"""How hard an example is whatever its label, and how the share of errors grows with it.

People err on pictures that could be either of two things. Flips of any hold-out example alike are then plainer than the
errors among the training examples: what looks like a hard example with its right label is taken for one, and too few
errors are expected. So the log odds of an error are a straight line in the hardness of the example, and the line is
found where there are no labels, like a share (:mod:`sgoif.evidence.prior`): by maximum likelihood, in turns between the
posterior under the current line and the line that fits the posterior. Noise that falls on all alike has a level line.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sgoif.evidence.crossfit import SIGNALS
from sgoif.evidence.logistic import fit_logistic, sigmoid

__all__ = ["ShareLine", "hardness", "line_of", "shift_line", "straightened"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_BIN = 0.1  # log odds, and deviations of hardness, that are taken for one
_STEEPEST = 3.0  # log odds of an error per standard deviation of hardness; 0.4-0.6 is true of human labels
_PULL = 0.001  # a ridge on the slope, per example: where errors are rarer than that, the line stays level
_LEVELS = (-14.0, 5.0)  # log odds of an error at mean hardness


def hardness(signals: Floats) -> Floats:
    """Compute the log odds against the most probable class, ``[N]``, from the loss and the margin.

    If the given label is not the most probable class, the margin tells how much less probable it is; so the label
    itself does not matter, up to the difference between a mean over visits and each of them.

    >>> signals = np.array([[-np.log(0.8), np.log(4)], [-np.log(0.2), -np.log(4)]])  # p = 0.8, 0.2 under both labels
    >>> hardness(signals).round(2).tolist()
    [-1.39, -1.39]
    """
    loss, margin = (signals[:, SIGNALS.index(name)] for name in ("loss", "margin"))
    top = np.exp(np.clip(-loss - np.minimum(margin, 0.0), -7.0, -1e-3))
    return np.asarray(np.log1p(-top) - np.log(top))


@dataclass(frozen=True, slots=True)
class ShareLine:
    """Log odds of an error by hardness."""

    level: float
    slope: float

    def log_odds(self, hard: Floats) -> Floats:
        """Compute the log odds, ``[N]``, from standardised hardness."""
        return self.level + self.slope * hard


def line_of(hard: Floats, is_flip: NDArray[np.bool_], weight: Floats) -> ShareLine:
    """Find the line of the canaries themselves, at their weights."""
    found = fit_logistic(hard[:, None], is_flip.astype(np.float64), weight, np.zeros(len(hard), np.int64), 1)
    return ShareLine(found.intercept, float(found.slopes[0]))


def shift_line(ratio: Floats, hard: Floats, start: ShareLine, max_iterations: int = 500) -> ShareLine:
    """Find the line among examples without labels, by EM.

    Examples are counted in cells first, so an iteration costs the number of occupied cells.

    Args:
        ratio: Log of how much more likely an example's signals are for a wrong label, ``[N]``.
        hard: Standardised hardness, ``[N]``.
        start: Where to begin.
        max_iterations: It stops earlier where neither number moves by 1e-5.
    """
    ratio, hard, count = _cells(ratio, hard)
    line, moments = start, np.stack([np.ones_like(hard), hard])
    pull = np.diag([0.0, _PULL * count.sum()])
    for _ in range(max_iterations):
        posterior, before = sigmoid(ratio + line.log_odds(hard)), line
        share = sigmoid(line.log_odds(hard))
        # One Newton step is enough of a maximisation.
        curvature = (moments * (count * share * (1 - share))) @ moments.T + pull
        uphill = moments @ (count * (posterior - share)) - pull[1] * line.slope
        step = np.clip(np.linalg.solve(curvature, uphill), -1, 1)
        level, slope = np.clip(line.level + step[0], *_LEVELS), np.clip(line.slope + step[1], -_STEEPEST, _STEEPEST)
        line = ShareLine(float(level), float(slope))
        if max(abs(line.level - before.level), abs(line.slope - before.slope)) < 1e-5:
            break
    return line


def straightened(ratio: Floats, hard: Floats, line: ShareLine) -> tuple[float, float]:
    """Find the multiple of ``ratio``, and the constant, that have the posterior under a line as their mean.

    Ranking by the posterior itself finds less: 62.5 instead of 66.0 AP on human labels, since what the line adds to a
    hard example is certain and what the signals say of it is not. So the list stays in the order of the ratio, and the
    line changes only what it promises.
    """
    ratio, hard, count = _cells(ratio, hard)
    posterior = sigmoid(ratio + line.log_odds(hard))
    found = fit_logistic(ratio[:, None], posterior, count, np.zeros(len(ratio), np.int64), 1)
    return float(found.slopes[0]), found.intercept


def _cells(ratio: Floats, hard: Floats) -> tuple[Floats, Floats, Floats]:
    """Count examples in cells of both: the cells' values, and how many are in each."""
    known = np.isfinite(ratio) & np.isfinite(hard)
    rows, columns = (np.round(np.clip(values[known], -40, 40) / _BIN).astype(np.int64) for values in (ratio, hard))
    keys, counts = np.unique(rows * 1_000 + columns + 500, return_counts=True)
    column = keys % 1_000
    return (keys - column) // 1_000 * _BIN, (column - 500) * _BIN, counts.astype(np.float64)
