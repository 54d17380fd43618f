"""What streams are made of: images as they are and made worse, what a network sees of them, and which come when.

What a network sees is computed once: test images as they are, corrupted, and CIFAR-100. All are lossless, so that no
stream is told by its compression but the one that is compressed.

Streams are positions of images, ``[S, T, B]``. A pass draws each of its images once. A window inside a pass and a
calibration of other images are then two plain draws from one population, for which alone a rate is promised; an endless
stream over a finite pool would not be: the pool's own mean is off as well.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from benchmarks import cache, data
from benchmarks.ood.subjects import BATCH, Subject, prepare
from sgoif.features.extraction import HeadFeatures, concatenate_features, extract_features, find_layers
from sgoif.gradients import quiet_eval

Pixels = NDArray[np.uint8]  # [N, H, W, 3]
Positions = NDArray[np.int64]

CORRUPTIONS: Mapping[str, tuple[float, ...]] = {
    "noise": (2, 4, 8, 16),  # standard deviation in steps of 255
    "blur": (0.35, 0.45, 0.6, 0.9),  # standard deviation in pixels
    "contrast": (0.95, 0.9, 0.8, 0.6),  # of the distance from the picture's mean, what is left
    "JPEG": (98, 95, 85, 60),  # quality, chroma halved
}
CHANGES = {
    f"{kind} {strength:g}": (kind, strength) for kind, strengths in CORRUPTIONS.items() for strength in strengths
}
CLEAN, OTHER = "clean", "CIFAR-100"
NUM_CORRUPTED = 5_000  # the first test images
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2)  # of images from elsewhere
# Weights of the ten classes.
LABEL_SHIFTS: Mapping[str, Callable[[np.random.Generator], NDArray[np.float64]]] = {
    "one class doubled": lambda rng: 1.0 + np.eye(10)[rng.integers(10)],
    "half of the classes gone": lambda rng: (rng.permutation(10) < 5).astype(np.float64),
    "Dirichlet(10)": lambda rng: rng.dirichlet(np.full(10, 10.0)),
}


def corrupt(pixels: Pixels, kind: str, strength: float, seed: int = 0) -> Pixels:
    """Return the pictures made worse; the seed is that of the noise."""
    if kind == "noise":
        drawn = np.random.default_rng(seed).standard_normal(pixels.shape, np.float32)
        return _round(pixels + np.float32(strength) * drawn)
    made: Mapping[str, Callable[[Pixels, float], Pixels]] = {"blur": _blur, "contrast": _fade, "JPEG": _compress}
    return made[kind](pixels, strength)


def _blur(pixels: Pixels, sigma: float) -> Pixels:
    places = torch.arange(-3, 4).float()
    weights = (-0.5 * (places / sigma) ** 2).exp()
    line = (weights / weights.sum()).repeat(3, 1)
    planes = torch.from_numpy(pixels.transpose(0, 3, 1, 2).astype(np.float32))
    planes = F.conv2d(F.pad(planes, (0, 0, 3, 3), mode="replicate"), line[:, None, :, None], groups=3)
    planes = F.conv2d(F.pad(planes, (3, 3, 0, 0), mode="replicate"), line[:, None, None, :], groups=3)
    return _round(planes.permute(0, 2, 3, 1).numpy())


def _fade(pixels: Pixels, left: float) -> Pixels:
    means = pixels.mean((1, 2, 3), keepdims=True, dtype=np.float32)
    return _round(means + np.float32(left) * (pixels - means))


def _compress(pixels: Pixels, quality: float) -> Pixels:
    found = []
    for picture in pixels:
        file = io.BytesIO()
        Image.fromarray(picture).save(file, "JPEG", quality=int(quality), subsampling=2)
        found.append(np.asarray(Image.open(file)))
    return np.stack(found)


def _round(values: NDArray[np.float32]) -> Pixels:
    return np.rint(values).clip(0, 255).astype(np.uint8)


class Pools:
    """What one network of the out-of-distribution benchmark sees, read from the cache or computed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    @cached_property
    def subject(self) -> Subject:
        return prepare("cifar10", self.seed)

    def read(self, name: str) -> HeadFeatures:
        """Of images that are clean, of another set, or corrupted as :data:`CHANGES` name it."""
        path = f"shift/cifar10-{self.seed}/{name.replace(' ', '-')}.pt"
        return HeadFeatures(*cache.keep(path, lambda: self._extract(_read_pixels(name))))

    def _extract(self, pixels: Pixels) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        model, inputs = self.subject.model, self.subject.inputs(pixels)
        head, layers = find_layers(model, model, inputs[:8], None)
        with quiet_eval(model):
            parts = [extract_features(model, model, part, head, layers) for part in inputs.split(BATCH)]
        found = concatenate_features(parts)
        return found.features, found.logits, dict(found.pooled)


def _read_pixels(name: str) -> Pixels:
    if name == OTHER:
        return data.pictures("cifar100", "test_lossless_first2000.parquet", "webp")
    test = data.cifar10("test").pixels
    return test if name == CLEAN else corrupt(test[:NUM_CORRUPTED], *CHANGES[name])


def draw_passes(pool: Positions, num: int, batch_size: int, rng: np.random.Generator) -> Positions:
    """Passes over the pool, each in an order of its own: ``[num, len(pool) // batch_size, batch_size]``."""
    length = len(pool) // batch_size
    orders = np.argsort(rng.random((num, len(pool))), 1)[:, : length * batch_size]
    return pool[orders].reshape(num, length, batch_size)


def draw_streams(pool: Positions, num: int, length: int, batch_size: int, rng: np.random.Generator) -> Positions:
    """Pass after pass, as long as it takes: ``[num, length, batch_size]``."""
    per_pass = len(pool) // batch_size
    count = -(-length // per_pass)
    return draw_passes(pool, num * count, batch_size, rng).reshape(num, count * per_pass, batch_size)[:, :length]


def switch(
    before: Positions, after: Positions, share: NDArray[np.float64], rng: np.random.Generator
) -> Positions:  # [S, T, B], [S, T, B], [T]
    """Take images of the second with the probability that each batch has."""
    return np.where(rng.random(before.shape) < share[None, :, None], after, before)


def sum_batches(rows: Tensor, positions: Positions) -> NDArray[np.float64]:
    """Sums over batches, ``[S, T, K]``."""
    streams, length, _ = positions.shape
    sums = F.embedding_bag(torch.from_numpy(positions.reshape(streams * length, -1)), rows, mode="sum")
    return sums.double().view(streams, length, -1).numpy()
