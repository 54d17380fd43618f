"""Embeddings made comparable: every feature centred and scaled, with outliers clamped and named.

One row of 65504, where half precision overflowed, would own the mean and the deviation of every feature. So both are
taken after values that lie far outside have been clamped, and what is far is measured without the extremes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sgoif.errors import SgoifError

__all__ = ["Standardised", "check_features", "clamp", "find_finite", "standardise"]

_FARTHEST = 10  # deviations; what lies farther out is clamped
_TRIMMED = 0.02  # share of each end that does not count when the first deviation is taken
_MANY_CLAMPED = 0.1  # share of a row's features that makes it an outlier
_ABSURD = 1e4  # deviations; a single such feature makes its row an outlier
_BROKEN = 1e3  # deviations; many such features make its row a broken one, as an overflow does
_SAME = 2e-7  # of the largest value: a smaller deviation is rounding
_AT_ONCE = 1 << 24  # numbers in a block of features, 128 MB


class Standardised(NamedTuple):
    """Embeddings that linear heads can be trained on."""

    inputs: Tensor  # [N, D]; 0 for a constant feature
    is_outlier: NDArray[np.bool_]  # [N]; rows with many clamped features, or one that is absurd
    is_broken: NDArray[np.bool_]  # [N]; outliers that lie so far out that they are no embedding of anything
    num_clamped: int  # values


def check_features(features: Any, num_examples: int | None = None, name: str = "the embeddings") -> NDArray[Any]:
    """Refuse what cannot be embeddings, and give the rest as an array ``[N, D]``.

    Raises:
        SgoifError: It does not hold numbers, has another shape, or another number of rows.
    """
    values: NDArray[Any] = np.asanyarray(features)
    count = "N" if num_examples is None else f"{num_examples:,}"
    needed = f"expected a table of numbers with one row per example, [{count}, D]"
    if values.dtype.kind not in "buif":
        raise SgoifError(f"{name} holds values of type {values.dtype}, {needed}; save it as float32.")
    if values.ndim != 2 or values.shape[1] == 0:
        hint = "; average or flatten the other axes" if values.ndim > 2 else ""
        raise SgoifError(f"{name} has the shape {list(values.shape)}, {needed}{hint}.")
    if num_examples is not None and len(values) != num_examples:
        raise SgoifError(f"{name} has {len(values):,} rows, {needed}.")
    return values


def find_finite(features: NDArray[Any]) -> NDArray[np.bool_]:
    """Which rows hold finite numbers only, ``[N]``."""
    step = max(1, _AT_ONCE // features.shape[1])
    parts = [np.isfinite(features[start : start + step]).all(1) for start in range(0, len(features), step)]
    return np.concatenate(parts) if parts else np.zeros(0, bool)


def standardise(features: NDArray[Any], rows: NDArray[np.bool_] | None = None) -> Standardised:
    """Scale every feature to mean 0 and deviation 1, and clamp what lies more than 10 deviations out.

    Args:
        features: finite numbers, ``[N, D]``.
        rows: over which mean and deviation are taken, ``[N]``; all of them if left out.

    Raises:
        SgoifError: Some values are not finite, or all features are constant.
    """
    check_features(features)
    count, width = features.shape
    chosen = np.ones(count, bool) if rows is None else rows
    found = np.zeros((count, width), np.float32)
    clamped, broken = np.zeros((2, count), np.int64)
    is_absurd, is_any_varied = np.zeros(count, bool), False
    step = max(1, _AT_ONCE // max(count, 1))
    for start in range(0, width, step):
        values = np.asarray(features[:, start : start + step], dtype=np.float64)
        if not np.isfinite(values).all():
            raise SgoifError("embeddings must be finite numbers; leave out the rows that are not.")
        center, scale = _typical(values[chosen])
        distance = np.abs(values - center)
        clamped += (distance > _FARTHEST * scale).sum(1)
        broken += (distance > _BROKEN * scale).sum(1)
        is_absurd |= (distance > _ABSURD * scale).any(1)
        kept = np.clip(values, center - _FARTHEST * scale, center + _FARTHEST * scale)
        mean, deviation = kept[chosen].mean(0), kept[chosen].std(0)
        is_varied = deviation > _SAME * np.abs(kept[chosen]).max(0, initial=0.0)
        is_any_varied |= bool(is_varied.any())
        kept = (kept - mean) / np.where(is_varied, deviation, np.inf)
        found[:, start : start + step] = kept.clip(-_FARTHEST, _FARTHEST)
    if not is_any_varied:
        raise SgoifError(
            f"all {width:,} features are the same for every one of {int(chosen.sum()):,} examples, so that nothing can "
            "be told apart by them; check what made the embeddings."
        )
    is_outlier = is_absurd | (clamped > _MANY_CLAMPED * width)
    return Standardised(torch.from_numpy(found), is_outlier, broken > _MANY_CLAMPED * width, int(clamped.sum()))


def clamp(features: NDArray[Any]) -> NDArray[np.float32]:
    """Clamp what lies more than 10 deviations out, and leave the rest as it is; values must be finite."""
    found = np.array(features, dtype=np.float32)
    step = max(1, _AT_ONCE // max(len(found), 1))
    for start in range(0, found.shape[1], step):
        values = found[:, start : start + step]
        center, scale = _typical(values.astype(np.float64))
        np.clip(values, center - _FARTHEST * scale, center + _FARTHEST * scale, out=values, casting="same_kind")
    return found


def _typical(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and deviation of each feature without its extremes, ``[D]`` both.

    Where all the rest is the same, as in a feature that few examples have, the extremes count too.
    """
    count = len(values)
    few = min(max(1, round(_TRIMMED * count)), max(0, (count - 1) // 2))
    ordered = np.partition(values, sorted({few, count - 1 - few}), axis=0)
    inside = (values >= ordered[few]) & (values <= ordered[count - 1 - few])
    center = values.mean(0, where=inside)
    scale = values.std(0, where=inside)
    is_same = scale <= _SAME * np.abs(values).max(0, where=inside, initial=0.0)
    return np.where(is_same, values.mean(0), center), np.where(is_same, values.std(0), scale)
