"""Pictures made worse in four ways at four strengths each: noise, blur, contrast, JPEG.

Strengths reach from what an eye hardly sees to what costs the network a good part of its accuracy.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image

__all__ = ["CORRUPTIONS", "corrupted"]

Pixels = NDArray[np.uint8]  # [N, H, W, 3]

CORRUPTIONS: Mapping[str, tuple[float, ...]] = {
    "noise": (2, 4, 8, 16),  # standard deviation in steps of 255
    "blur": (0.35, 0.45, 0.6, 0.9),  # standard deviation in pixels
    "contrast": (0.95, 0.9, 0.8, 0.6),  # of the distance from the picture's mean, what is left
    "JPEG": (98, 95, 85, 60),  # quality, chroma halved
}


def corrupted(pixels: Pixels, kind: str, strength: float, seed: int = 0) -> Pixels:
    """Return the pictures made worse; the seed is that of the noise."""
    if kind == "noise":
        drawn = np.random.default_rng(seed).standard_normal(pixels.shape, np.float32)
        return _rounded(pixels + np.float32(strength) * drawn)
    made: Mapping[str, Callable[[Pixels, float], Pixels]] = {"blur": _blurred, "contrast": _faded, "JPEG": _compressed}
    return made[kind](pixels, strength)


def _blurred(pixels: Pixels, sigma: float) -> Pixels:
    places = torch.arange(-3, 4).float()
    weights = (-0.5 * (places / sigma) ** 2).exp()
    line = (weights / weights.sum()).repeat(3, 1)
    planes = torch.from_numpy(pixels.transpose(0, 3, 1, 2).astype(np.float32))
    planes = F.conv2d(F.pad(planes, (0, 0, 3, 3), mode="replicate"), line[:, None, :, None], groups=3)
    planes = F.conv2d(F.pad(planes, (3, 3, 0, 0), mode="replicate"), line[:, None, None, :], groups=3)
    return _rounded(planes.permute(0, 2, 3, 1).numpy())


def _faded(pixels: Pixels, left: float) -> Pixels:
    means = pixels.mean((1, 2, 3), keepdims=True, dtype=np.float32)
    return _rounded(means + np.float32(left) * (pixels - means))


def _compressed(pixels: Pixels, quality: float) -> Pixels:
    return np.stack([_through_jpeg(picture, int(quality)) for picture in pixels])


def _through_jpeg(picture: Pixels, quality: int) -> Pixels:
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "JPEG", quality=quality, subsampling=2)
    return np.asarray(Image.open(file))


def _rounded(values: NDArray[np.float32]) -> Pixels:
    return np.rint(values).clip(0, 255).astype(np.uint8)
