"""A small residual network for small pictures, trained from scratch where there are no features to start from."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["SmallResNet"]


class SmallResNet(nn.Module):
    """Eight 3×3 convolutions and a linear head: about 0.7 million parameters at its default widths.

    >>> import torch
    >>> SmallResNet(num_classes=3)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 3])
    """

    def __init__(self, widths: Sequence[int] = (16, 32, 64, 128), num_classes: int = 10) -> None:
        super().__init__()
        first, second, third, last = widths
        self.stem = _ConvBlock(3, first)
        self.down1 = _ConvBlock(first, second, pool=True)
        self.res1 = nn.Sequential(_ConvBlock(second, second), _ConvBlock(second, second))
        self.down2 = _ConvBlock(second, third, pool=True)
        self.down3 = _ConvBlock(third, last, pool=True)
        self.res3 = nn.Sequential(_ConvBlock(last, last), _ConvBlock(last, last))
        self.head = nn.Linear(last, num_classes)

    def forward(self, images: Tensor) -> Tensor:  # [N, 3, H, W] -> [N, C]
        x = self.down1(self.stem(images))
        x = self.down3(self.down2(x + self.res1(x)))
        x = x + self.res3(x)
        return self.head(F.adaptive_max_pool2d(x, 1).flatten(1))  # type: ignore[no-any-return]


class _ConvBlock(nn.Module):
    """Convolution, optional 2×2 max pool, batch norm, ReLU; pooling before the norm quarters the norm's work."""

    def __init__(self, channels_in: int, channels_out: int, pool: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels_out)
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return F.relu(self.norm(F.max_pool2d(x, 2) if self.pool else x))
