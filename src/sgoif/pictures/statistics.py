"""Statistics of pictures: how bright, sharp and large they are."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SgoifError
from sgoif.types import Floats

__all__ = ["STATISTICS", "measure_pictures"]

STATISTICS = (
    *("brightness", "contrast", "darkest", "brightest", "sharpness", "entropy"),
    *("width", "height", "aspect"),
)
_BLOCK = 2_000


def measure_pictures(pictures: NDArray[np.uint8], sizes: NDArray[np.integer[Any]]) -> dict[str, NDArray[Any]]:
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


def _entropy(flat: NDArray[np.floating[Any]]) -> Floats:
    shade = np.minimum((flat * 32).astype(np.int64), 31) + 32 * np.arange(len(flat))[:, None]
    share = np.bincount(shade.reshape(-1), minlength=32 * len(flat)).reshape(len(flat), 32) / flat.shape[1]
    return np.asarray(-(share * np.log2(np.maximum(share, 1e-12))).sum(1))
