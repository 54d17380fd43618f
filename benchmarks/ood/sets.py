"""The pictures that a network was not made for, in the size and channels of those that it was made for.

CIFAR-100 is the lossless part. Tiny-ImageNet and the textures came as JPEG and are halved in size, which hides most of
that but not all: a part of what is seen in them may be compression.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from benchmarks import data

Pixels = NDArray[np.uint8]

# Tiny-ImageNet's classes that are a CIFAR-10 class, or hardly told from one: birds, frogs, dogs, cats and large cats,
# the gazelle, cars and karts, boats, vans, buses and lorries.
_SHARED = frozenset(
    [2, 3, 11, 20, 21, 22, 95, *range(24, 35), 51, 52, 70, 94, 103, 107, 108, 115, 116, 121, 133, 145, 153, 164, 166]
)


def outside(dataset: str, limit: int = 2_600) -> dict[str, Pixels]:
    """Sets for a network of ``dataset``, by name; at most ``limit`` pictures of each, spread over the set."""
    found = _colour() if dataset == "cifar10" else _grey(dataset)
    return {name: pixels[:: max(1, -(-len(pixels) // limit))] for name, pixels in found.items()}


def _grey(dataset: str) -> dict[str, Pixels]:
    other = {"mnist": ("Fashion-MNIST", data.fashion_mnist), "fashion": ("MNIST", data.mnist)}[dataset]
    colour = data.cifar10("test").pixels @ np.array([0.299, 0.587, 0.114])
    return {
        other[0]: other[1]("test").pixels,
        "notMNIST": data.pictures("notmnist", "test.npz"),
        "EMNIST letters": data.pictures("emnist_letters", "test.npz"),
        "CIFAR-10, grey": _resize(colour[..., None], 28),
    }


def _colour() -> dict[str, Pixels]:
    return {
        "CIFAR-100": data.pictures("cifar100", "test_lossless_first2000.parquet", "webp"),
        "Tiny-ImageNet": _tiny(),
        "textures": _resize(data.pictures("dtd", "textures.parquet", "jpeg"), 32),
        "MNIST": _add_channels(data.mnist("test").pixels),
        "Fashion-MNIST": _add_channels(data.fashion_mnist("test").pixels),
    }


def _tiny() -> Pixels:
    import pyarrow.parquet as pq

    labels = pq.read_table(data.data_root() / "tiny_imagenet" / "val.parquet", columns=["label"])["label"].to_numpy()
    kept = np.flatnonzero(~np.isin(labels, list(_SHARED)))[::2]
    return _resize(data.pictures("tiny_imagenet", "val.parquet", "jpeg")[kept], 32)


def _add_channels(grey: Pixels) -> Pixels:
    return _resize(grey, 32).repeat(3, axis=3)


def _resize(pixels: NDArray[np.number], side: int) -> Pixels:
    """Bilinear, with antialiasing."""
    planes = torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))).float()
    small = F.interpolate(planes, (side, side), mode="bilinear", antialias=True).round().clamp(0, 255)
    return small.to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()
