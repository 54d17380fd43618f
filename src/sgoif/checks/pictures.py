"""Odd pictures: dark, bright, blurry, tiny, of an odd shape, or with nothing on them.

Dark, bright, tiny, odd shape and low information are what they say by fixed limits, unless more than a quarter of the
set is: then that is how the set looks. Blur has no fixed limit, since small and large pictures differ; a picture is
called blurry where its sharpness is less than half the median and below what the tail of the set explains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.checks.data import CheckedData, DataIssue, cannot_check, list_worst
from sgoif.checks.numbers import select_discoveries, share_interval, tail_p_values
from sgoif.types import Floats
from sgoif.wording import count, percent

__all__ = ["LITTLE_ENTROPY", "find_odd_pictures"]

_COMMON = 0.25  # share from which on an oddity is how the set looks
_DARK, _BRIGHT = 0.15, 0.85  # of the brightest and darkest parts, where white is 1
LITTLE_ENTROPY = 1.0  # bits of entropy of a histogram of 32 greys
_TINY, _LONG = 5.0, 3.0  # times smaller than the median side, and than the median ratio of the sides
_FALSE_SHARE, _FEWEST_FOR_BLUR = 0.1, 200

Statistics = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class _Oddity:
    """A kind of odd picture: how much each picture is it (1 and more: it is), and what it is called."""

    kind: str
    needs: tuple[str, ...]
    measure: Callable[[Statistics], Floats]
    are: str
    what_to_do: str


_ODDITIES = (
    _Oddity(
        "dark_pictures",
        ("brightest",),
        lambda found: _DARK / np.maximum(found["brightest"], 1e-3),
        "almost black",
        "Look at them: remove what shows nothing, and check the camera or the export that made them.",
    ),
    _Oddity(
        "bright_pictures",
        ("darkest",),
        lambda found: (1 - _BRIGHT) / np.maximum(1 - found["darkest"], 1e-3),
        "almost white",
        "Look at them: remove what is overexposed or blank.",
    ),
    _Oddity(
        "blurry_pictures",
        ("sharpness",),
        lambda found: _blur(found["sharpness"]),
        "much less sharp than the others",
        "Look at them: take sharper ones, or keep them if such pictures will come in use too.",
    ),
    _Oddity(
        "tiny_pictures",
        ("width", "height"),
        lambda found: _smallness(found["width"], found["height"]),
        "less than a fifth as large as the median picture",
        "Look at them: thumbnails carry little detail, and a model learns to tell classes by it.",
    ),
    _Oddity(
        "odd_aspect_ratio",
        ("aspect",),
        lambda found: _distortion(found["aspect"]),
        "more than three times as wide or as high as usual",
        "Look at them: scaled to a square they are distorted; crop or pad them.",
    ),
    _Oddity(
        "low_information",
        ("entropy",),
        lambda found: LITTLE_ENTROPY / np.maximum(found["entropy"], 1e-3),
        "almost of one colour",
        "Look at them: remove blank pictures and placeholders.",
    ),
)


def find_odd_pictures(data: CheckedData) -> list[DataIssue]:
    """One answer for each kind of odd picture."""
    if data.pictures is None:
        return [cannot_check(oddity.kind, "the run has no pictures") for oddity in _ODDITIES]
    return [_find(data, data.pictures, oddity) for oddity in _ODDITIES]


def _find(data: CheckedData, pictures: Statistics, oddity: _Oddity) -> DataIssue:
    if any(name not in pictures for name in oddity.needs):
        return cannot_check(oddity.kind, f"the statistics of the pictures lack {', '.join(oddity.needs)}")
    if oddity.kind == "blurry_pictures" and np.isfinite(pictures["sharpness"]).sum() < _FEWEST_FOR_BLUR:
        return cannot_check(oddity.kind, f"fewer than {_FEWEST_FOR_BLUR} pictures; these do not show what is usual")
    score = np.nan_to_num(np.asarray(oddity.measure(pictures), np.float64), nan=0.0)
    rows = np.flatnonzero(score >= 1)
    share = len(rows) / max(len(data), 1)
    low, high = share_interval(len(rows), len(data))
    is_common = share > _COMMON
    title = f"{count(len(rows), 'picture')} {'is' if len(rows) == 1 else 'are'} {oddity.are}."
    if not len(rows):
        title = f"No picture is {oddity.are}."
    if is_common:
        title = f"{percent(share)} of the pictures are {oddity.are}; that is how this set looks, and none is named."
        rows = rows[:0]
    return DataIssue(
        oddity.kind,
        title,
        len(rows),
        share,
        low,
        high,
        severity="none" if not len(rows) else "medium" if share >= 0.01 else "low",
        what_to_do=oddity.what_to_do,
        **list_worst(data, rows, score[rows]),
    )


def _blur(sharpness: Floats) -> Floats:
    known = np.flatnonzero(np.isfinite(sharpness))
    score = np.zeros(len(sharpness))
    low = np.log(np.maximum(sharpness[known], 1e-6))
    ratio = np.exp(np.median(low) - low) / 2
    chosen = select_discoveries(tail_p_values(-low), _FALSE_SHARE)
    score[known] = np.where(chosen, ratio, np.minimum(ratio, 0.999))
    return score


def _smallness(width: NDArray[Any], height: NDArray[Any]) -> Floats:
    side = np.sqrt(np.maximum(width.astype(np.float64) * height, 1))
    return np.asarray(np.median(side) / side / _TINY)


def _distortion(aspect: Floats) -> Floats:
    logs = np.log(np.maximum(aspect, 1e-6))
    return np.asarray(np.exp(np.abs(logs - np.median(logs))) / _LONG)
