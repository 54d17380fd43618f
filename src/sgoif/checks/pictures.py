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
from sgoif.errors import SgoifError
from sgoif.types import Floats
from sgoif.wording import count, percent

__all__ = ["LITTLE_ENTROPY", "find_odd_pictures", "picture_statistics"]

_COMMON = 0.25  # share from which on an oddity is how the set looks
_DARK, _BRIGHT = 0.15, 0.85  # of the brightest and darkest parts, where white is 1
LITTLE_ENTROPY = 1.0  # bits of entropy of a histogram of 32 greys
_TINY, _LONG = 5.0, 3.0  # times smaller than the median side, and than the median ratio of the sides
_FALSE_SHARE, _FEWEST_FOR_BLUR = 0.1, 200
_BLOCK = 2_000

Statistics = Mapping[str, NDArray[Any]]


def picture_statistics(pictures: NDArray[np.uint8], sizes: NDArray[np.integer[Any]]) -> dict[str, NDArray[Any]]:
    """Measure pictures: one value each of what the checks for odd pictures and shortcuts look at.

    Args:
        pictures: scaled to squares, ``[N, S, S, 3]``; grey ones as ``[N, S, S, 1]``.
        sizes: width and height before scaling, ``[N, 2]``.

    Returns:
        ``brightness`` (mean), ``contrast`` (standard deviation), ``darkest`` and ``brightest`` (1% and 99% quantile),
        all between 0 and 1; ``sharpness`` (energy of edges by contrast), ``entropy`` (bits, of 32 greys), ``width``,
        ``height`` and ``aspect`` (width by height).

    Raises:
        SgoifError: Shapes do not fit.
    """
    if pictures.ndim != 4 or pictures.shape[3] not in (1, 3) or sizes.shape != (len(pictures), 2):
        raise SgoifError(
            f"pictures must be [N, S, S, 3] with sizes [N, 2], got {list(pictures.shape)} and {list(sizes.shape)}."
        )
    parts = [_measure(pictures[start : start + _BLOCK]) for start in range(0, len(pictures), _BLOCK)]
    found = {name: np.concatenate([part[name] for part in parts]) for name in (parts[0] if parts else ())}
    width, height = sizes.astype(np.float64).T
    return {**found, "width": sizes[:, 0], "height": sizes[:, 1], "aspect": width / np.maximum(height, 1)}


def _measure(pictures: NDArray[np.uint8]) -> dict[str, Floats]:
    weights = np.array([0.299, 0.587, 0.114], np.float32)
    light = pictures.astype(np.float32) @ weights if pictures.shape[3] == 3 else pictures[..., 0].astype(np.float32)
    light = light / 255
    flat = light.reshape(len(light), -1)
    contrast = flat.std(1)
    darkest, brightest = np.quantile(flat, [0.01, 0.99], axis=1)
    inner = (
        4 * light[:, 1:-1, 1:-1] - light[:, :-2, 1:-1] - light[:, 2:, 1:-1] - light[:, 1:-1, :-2] - light[:, 1:-1, 2:]
    )
    edges = inner.reshape(len(light), -1).std(1)
    return {
        "brightness": flat.mean(1),
        "contrast": contrast,
        "darkest": darkest,
        "brightest": brightest,
        "sharpness": np.where(contrast > 0.01, edges / np.maximum(contrast, 0.01), np.nan),  # nothing to be blurred
        "entropy": _entropy(flat),
    }


def _entropy(flat: NDArray[np.float32]) -> Floats:
    shade = np.minimum((flat * 32).astype(np.int64), 31) + 32 * np.arange(len(flat))[:, None]
    share = np.bincount(shade.reshape(-1), minlength=32 * len(flat)).reshape(len(flat), 32) / flat.shape[1]
    return np.asarray(-(share * np.log2(np.maximum(share, 1e-12))).sum(1))


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
