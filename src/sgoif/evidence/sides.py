"""Calibration of tags, one side at a time: of the tags that are given, which are too many; of the others, which miss.

The two kinds of error have rates and signals of their own, so each side has a calibration of its own. In it a pair's
class is its tag: every tag has an intercept, shrunk to a common one, so that a tag with few held-out examples is judged
like the others. A canary of a side is a hold-out pair tried under that side's bit: sound if that is its own bit, an
error if it was flipped.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sgoif.evidence.calibrate import CanaryCalibration, LabelCalibration, fit_canaries
from sgoif.evidence.canaries import Canaries

__all__ = ["calibrate_side", "side_canaries"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_PLAUSIBLE = (0.0005, 0.9)  # shares of errors that can be believed; the lowest is promised where fewer are found
_ROUNDS = 3
_FLOOR = 0.05  # of the mean weight of a tag's flips, so that a tag not suspected in one round can be in the next


def side_canaries(
    rows: Ints, fold: Ints, tags: Ints, is_flip: NDArray[np.bool_], belief: Floats, signals: Floats, num_tags: int
) -> Canaries:
    """The canaries of one side; a flipped pair has no tag that it should have been given under.

    Args:
        rows: hold-out examples, ``[M]``.
        fold: of the example.
        tags: ``[M]``.
        is_flip: which pairs are tried under a bit that is not theirs.
        belief: how far the hold-out's bit is believed, times how many pairs this one stands for.
        signals: ``[M, S]``.
        num_tags: ``C``.
    """
    label, nobody = np.where(is_flip, -1, tags), np.full(len(rows), -1)
    return Canaries(rows, fold, label, tags, belief, belief, signals, nobody, num_tags)


def calibrate_side(canaries: Canaries, signals: Floats, tags: Ints) -> LabelCalibration:
    """Calibrate one side on its canaries and adapt it to the training pairs of that side.

    Each round re-estimates the share of errors among the training pairs, and weighs the flips of a tag by how many
    errors were found in it. Where the share is next to nothing, the canaries' own weights stay and the lowest
    believable share is taken.

    Args:
        canaries: from :func:`side_canaries`.
        signals: of the training pairs of this side, ``[N, S]``.
        tags: ``[N]``.
    """
    weighted = canaries
    for left in range(_ROUNDS, -1, -1):
        fitted = fit_canaries(weighted).with_prior(signals, tags)
        if left:
            weighted = _weighed_by_tag(canaries, fitted, signals, tags)
    share = float(fitted.predict(signals, tags).mean())
    if not _PLAUSIBLE[0] < share < _PLAUSIBLE[1]:
        weighted, fitted = canaries, fit_canaries(canaries)
        fitted = fitted.at_share(_PLAUSIBLE[0]) if share < _PLAUSIBLE[1] else fitted
    as_given = fit_canaries(weighted.taken_as_given()) if (canaries.belief < 1).any() else None
    return LabelCalibration(weighted, np.zeros((0, 0)), fitted, as_given)


def _weighed_by_tag(canaries: Canaries, fitted: CanaryCalibration, signals: Floats, tags: Ints) -> Canaries:
    count, flips = canaries.num_classes, canaries.is_flip
    found = np.bincount(tags, weights=fitted.predict(signals, tags), minlength=count)
    held = np.bincount(canaries.assigned_label[flips], weights=canaries.weight[flips], minlength=count)
    growth = found / np.maximum(held, 1e-12) * held.sum() / max(found.sum(), 1e-12)
    growth = np.maximum(growth, _FLOOR)[canaries.assigned_label]
    growth = growth / np.average(growth[flips], weights=canaries.weight[flips])
    return replace(canaries, weight=canaries.weight * np.where(flips, growth, 1.0))
