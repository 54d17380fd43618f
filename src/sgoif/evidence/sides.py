"""Calibration of tags, one side at a time: of the tags that are given, which are too many; of the others, which miss.

The two kinds of error have rates and signals of their own, so each side has a calibration of its own. In it a pair's
class is its tag: every tag has an intercept, shrunk to a common one, so that a tag with few held-out examples is judged
like the others. A canary of a side is a hold-out pair tried under that side's bit: sound if that is its own bit, an
error if it was flipped.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sgoif.evidence.calibrate import LabelCalibration, fit_canaries
from sgoif.evidence.canaries import Canaries
from sgoif.types import Floats, Ints

__all__ = ["calibrate_side", "side_canaries", "unbend"]


_PLAUSIBLE = (0.0005, 0.9)  # shares of errors that can be believed; the lowest is taken where fewer are found
# Prior precision of a tag's intercept. Where a network is calibrated a margin says all and tags need none; the weak
# prior of classes (4) cost up to 1.7 AP on the development set against no intercepts at all, this one up to 0.3.
_TAG_RIDGE = 100.0
_STEEPEST = 30.0  # log odds beyond which nothing is told apart


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
    """Calibrate one side on its canaries, and re-estimate the share of errors on the training pairs of that side.

    One share for all tags: weighing the flips of a tag by the errors found in it, as classes do, feeds on itself where
    tags differ in difficulty, and cost 3 to 10 AP on the development set. Where the share is almost zero, the
    lowest believable one is taken.

    Args:
        canaries: from :func:`side_canaries`.
        signals: of the training pairs of this side, ``[N, S]``.
        tags: ``[N]``.
    """
    plain = fit_canaries(canaries, class_ridge=_TAG_RIDGE)
    fitted = plain.with_prior(signals, tags)
    share = float(fitted.predict(signals, tags).mean())
    if not _PLAUSIBLE[0] < share < _PLAUSIBLE[1]:
        fitted = plain.at_share(_PLAUSIBLE[0]) if share < _PLAUSIBLE[1] else plain
    return LabelCalibration(canaries, fitted)


def unbend(values: Floats) -> Floats:
    """What :func:`sgoif.evidence.squash` bends into ``values``: for signals that are log odds as they stand.

    >>> from sgoif.evidence.calibrate import squash
    >>> squash(unbend(np.array([-3.0, 0.0, 2.0]))).round(6).tolist()
    [-3.0, 0.0, 2.0]
    """
    return np.asarray(np.sign(values) * np.expm1(np.minimum(np.abs(values), _STEEPEST)))
