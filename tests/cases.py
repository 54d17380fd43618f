"""Small models that every test may use: one of each kind of trouble that real networks make."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class ResidualNet(nn.Module):
    """Train-mode BatchNorm, in-place ReLU, a strided shortcut: a ResNet in miniature."""

    def __init__(self, channels: int = 6, classes: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride=2, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Conv2d(channels, channels, 1, stride=2)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm1(self.stem(x)))
        y = self.norm2(self.conv2(x))
        y += self.shortcut(x)
        return self.fc(self.relu(y).mean((2, 3)))


class TransformerNet(nn.Module):
    """A ViT block: patch convolution, attention as a module or as Linears, LayerNorm, GELU."""

    def __init__(self, width: int = 8, heads: int = 2, classes: int = 4, attention: str = "module") -> None:
        super().__init__()
        self.heads, self.kind = heads, attention
        self.patch = nn.Conv2d(3, width, 2, stride=2)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        if attention == "module":
            self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        else:
            self.qkv, self.proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.fc = nn.Linear(width, classes)

    def attend(self, x: Tensor) -> Tensor:
        if self.kind == "module":
            return self.attention(x, x, x, need_weights=False)[0]
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).mT
        x = x + self.attend(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        return self.fc(x.mean(1))


class LayerScale(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.linspace(0.1, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class ConvNextNet(nn.Module):
    """A depthwise convolution, channels-last LayerNorm and Linears, and a LayerScale that has no rule of its own."""

    def __init__(self, width: int = 6, classes: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 2, stride=2)
        self.depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)
        self.scale = LayerScale(width)
        self.fc = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale(self.down(F.gelu(self.up(y))))
        return self.fc((x + y.permute(0, 3, 1, 2)).mean((2, 3)))


class CheckpointedNet(nn.Module):
    """A body under activation checkpointing of either kind; ``enabled = False`` gives the same function without it."""

    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 5, 3, padding=1), nn.GroupNorm(1, 5), nn.ReLU(inplace=True), nn.Conv2d(5, 5, 3, groups=5)
        )
        self.first = nn.Conv2d(3, 3, 1)
        self.fc = nn.Linear(5, 4)
        self.use_reentrant, self.enabled = use_reentrant, True

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = checkpoint(self.body, x, use_reentrant=self.use_reentrant) if self.enabled else self.body(x)
        return self.fc(x.mean((2, 3)))


class SharedCallNet(nn.Module):
    """One module called twice in a forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.fc = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)[:, :6]
        return self.fc(torch.tanh(self.layer(torch.tanh(self.layer(x)))))


def images(batch: int = 5, size: int = 8, seed: int = 0, classes: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randn(batch, 3, size, size, generator=generator, dtype=torch.float64)
    return pixels, torch.randint(0, classes, (batch,), generator=generator)
