"""The data that issues are planted in, and foreign examples to plant.

Pictures go through an ImageNet EfficientNet-Lite0 at 96 pixels, texts through all-MiniLM-L6-v2, both once. CIFAR-10 is
taken from its reported part: pictures 20,000 to 29,999. Fashion-MNIST is its first 10,000, CLINC150 all 15,000 texts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import cache, data, frozen
from benchmarks.ood.sets import _resize as resize_pictures
from benchmarks.trust.sets import embed_texts

__all__ = ["DEVELOPMENT", "REPORTED", "Pool", "load_pool"]

DEVELOPMENT, REPORTED = ("fashion",), ("cifar10", "clinc150")

_FOREIGN = 300
_SIDE, _BATCH = 96, 200


@dataclass(frozen=True, slots=True)
class Pool:
    """Examples as they are, and foreign ones."""

    rows: NDArray[np.float32]  # [N, D]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    foreign: NDArray[np.float32]  # embeddings of examples that are of no class, [F, D]
    pixels: NDArray[np.uint8] | None = None  # [N, H, W, 3]
    foreign_pixels: NDArray[np.uint8] | None = None
    texts: tuple[str, ...] = ()


@lru_cache(maxsize=1)
def load_pool(name: str) -> Pool:
    """Load one of the sets."""
    return {"fashion": _fashion, "cifar10": _cifar10, "clinc150": _clinc150}[name]()


def _fashion() -> Pool:
    images = data.fashion_mnist("train", 10_000).take(slice(10_000))
    letters = data.pictures("notmnist", "test.npz")
    return _pictures("fashion", images, letters[:: len(letters) // _FOREIGN][:_FOREIGN])


def _cifar10() -> Pool:
    images = data.cifar10("train").take(slice(20_000, 30_000))
    textures = resize_pictures(data.pictures("dtd", "textures.parquet", "jpeg"), 32)
    return _pictures("cifar10", images, textures[:: len(textures) // _FOREIGN][:_FOREIGN])


def _pictures(name: str, images: data.Images, foreign: NDArray[np.uint8]) -> Pool:
    pixels, others = (np.broadcast_to(found, (*found.shape[:3], 3)) for found in (images.pixels, foreign))
    rows = _embed_once(f"checks-{name}", lambda: _embed(pixels))
    return Pool(
        rows,
        images.labels,
        images.class_names,
        _embed_once(f"checks-{name}-foreign", lambda: _embed(others)),
        pixels,
        others,
    )


def _embed_once(name: str, make: Callable[[], NDArray[np.float32]]) -> NDArray[np.float32]:
    return np.asarray(cache.keep(f"{name}.npy", make))


def _embed(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    model, parts = frozen.Backbone(_SIDE), []
    with torch.inference_mode():
        for start in range(0, len(pixels), _BATCH):
            batch = np.ascontiguousarray(pixels[start : start + _BATCH].transpose(0, 3, 1, 2))
            parts.append(model(torch.from_numpy(batch).float() / 255).numpy())
    return np.concatenate(parts)


def _clinc150() -> Pool:
    whole = json.loads((data.data_root() / "text/clinc150/data_full.json").read_text())
    texts, intents = zip(*whole["train"], strict=True)
    outside = [text for text, _ in whole["oos_test"]][:_FOREIGN]
    names, labels = np.unique(intents, return_inverse=True)
    rows = _embed_once("checks-clinc150", lambda: embed_texts(list(texts)))
    foreign = _embed_once("checks-clinc150-foreign", lambda: embed_texts(outside))
    return Pool(rows, labels.astype(np.int64), tuple(names.tolist()), foreign, texts=tuple(texts))
