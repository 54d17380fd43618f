"""The networks of the benchmarks: a small and two standard residual networks, and a small vision transformer.

All are for 32×32 images, ResNet-50 for larger ones, return logits, and are built of layers that have a per-example
gradient rule of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.context import CONTEXT


class ResNet9(nn.Module):
    """The network of most benchmarks, as wide as the context says.

    Eight 3×3 convolutions and a linear head: about 0.7 million parameters at its default widths.
    """

    def __init__(self, widths: Sequence[int] = (16, 32, 64, 128), num_classes: int = 10) -> None:
        super().__init__()
        first, second, third, last = (CONTEXT.width * width for width in widths)
        self.stem = _ConvBlock(3, first)
        self.down1 = _ConvBlock(first, second, pool=True)
        self.res1 = nn.Sequential(_ConvBlock(second, second), _ConvBlock(second, second))
        self.down2 = _ConvBlock(second, third, pool=True)
        self.down3 = _ConvBlock(third, last, pool=True)
        self.res3 = nn.Sequential(_ConvBlock(last, last), _ConvBlock(last, last))
        self.head = nn.Linear(last, num_classes)
        self.to(CONTEXT.device)

    def forward(self, images: Tensor) -> Tensor:  # [N, 3, H, W] -> [N, C]
        x = self.down1(self.stem(images))
        x = self.down3(self.down2(x + self.res1(x)))
        x = x + self.res3(x)
        return self.head(F.adaptive_max_pool2d(x, 1).flatten(1))


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


def fresh_model(seed: int, num_classes: int = 10) -> ResNet9:
    """A network whose start repeats itself."""
    torch.manual_seed(seed)
    return ResNet9(num_classes=num_classes).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


class _ResNet(nn.Module):
    """Four stages of residual blocks (He et al. 2016), each twice as wide as the one before.

    The small stem is a 3×3 convolution, for CIFAR; the large one, for ImageNet, is 7×7 and pooled, and leaves a
    sixteenth of the positions.
    """

    def __init__(
        self,
        block: type[_BasicBlock | _Bottleneck],
        depths: Sequence[int],
        num_classes: int,
        width: int,
        pooled: tuple[int, int],
        stem: Literal["small", "large"],
    ) -> None:
        super().__init__()
        width *= CONTEXT.width
        self.pooled = pooled
        is_small = stem == "small"
        self.conv = nn.Conv2d(
            3, width, 3 if is_small else 7, 1 if is_small else 2, padding=1 if is_small else 3, bias=False
        )
        self.norm = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.pool: nn.Module = nn.Identity() if is_small else nn.MaxPool2d(3, 2, padding=1)
        stages, channels = [], width
        for depth, count in enumerate(depths):
            out = width * 2**depth * block.expansion
            first = block(channels, out, stride=1 if depth == 0 else 2)
            stages.append(nn.Sequential(first, *(block(out, out) for _ in range(count - 1))))
            channels = out
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(channels * pooled[0] * pooled[1], num_classes)
        self.to(CONTEXT.device)

    def forward(self, images: Tensor) -> Tensor:  # [N, 3, H, W] -> [N, C]
        x = self.stages(self.pool(self.relu(self.norm(self.conv(images)))))
        return self.head(F.adaptive_avg_pool2d(x, self.pooled).flatten(1))


class ResNet18(_ResNet):
    """ResNet-18, by default for CIFAR: two basic blocks in each stage.

    Pooled to more than one position, it has a head of as many times 512 inputs.
    """

    def __init__(
        self,
        num_classes: int = 10,
        width: int = 64,
        pooled: tuple[int, int] = (1, 1),
        stem: Literal["small", "large"] = "small",
    ) -> None:
        super().__init__(_BasicBlock, (2, 2, 2, 2), num_classes, width, pooled, stem)


class ResNet50(_ResNet):
    """ResNet-50, by default for ImageNet; strides lie in the 3×3 convolutions."""

    def __init__(
        self,
        num_classes: int = 1000,
        width: int = 64,
        pooled: tuple[int, int] = (1, 1),
        stem: Literal["small", "large"] = "large",
    ) -> None:
        super().__init__(_Bottleneck, (3, 4, 6, 3), num_classes, width, pooled, stem)


def _shortcut(channels_in: int, channels_out: int, stride: int) -> nn.Module:
    if stride == 1 and channels_in == channels_out:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(channels_in, channels_out, 1, stride, bias=False), nn.BatchNorm2d(channels_out))


class _BasicBlock(nn.Module):
    expansion = 1  # how many times as wide as its inner layers the block is outside

    def __init__(self, channels_in: int, channels_out: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels_out)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = _shortcut(channels_in, channels_out, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm1(self.conv1(x)))
        return self.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class _Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, channels_in: int, channels_out: int, stride: int = 1) -> None:
        super().__init__()
        inner = channels_out // self.expansion
        self.conv1 = nn.Conv2d(channels_in, inner, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, channels_out, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(channels_out)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = _shortcut(channels_in, channels_out, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.relu(self.norm2(self.conv2(y)))
        return self.relu(self.norm3(self.conv3(y)) + self.shortcut(x))


class SmallViT(nn.Module):
    """Small vision transformer: pre-norm blocks, learned positions, mean pooling (Dosovitskiy et al. 2021)."""

    def __init__(
        self,
        image: int = 32,
        patch: int = 4,
        dim: int = 192,
        depth: int = 6,
        heads: int = 3,
        num_classes: int = 10,
    ) -> None:
        super().__init__()
        dim *= CONTEXT.width
        if image % patch or dim % heads:
            raise ValueError(f"patch {patch} must divide image {image}, and heads {heads} must divide dim {dim}")
        self.embed = nn.Conv2d(3, dim, patch, stride=patch)
        self.positions = nn.Parameter(torch.randn(1, (image // patch) ** 2, dim) * 0.02)
        self.blocks = nn.Sequential(*(_TransformerBlock(dim, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_classes)
        self.to(CONTEXT.device)

    def forward(self, images: Tensor) -> Tensor:  # [N, 3, H, W] -> [N, C]
        tokens = self.embed(images).flatten(2).mT + self.positions  # [N, T, dim]
        return self.head(self.norm(self.blocks(tokens)).mean(1))


class _TransformerBlock(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attention = _Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class _Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        n, t, dim = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)  # [N, heads, T, d]
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, dim))
