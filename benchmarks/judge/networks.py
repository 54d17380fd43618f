"""The small networks that are trained, and how; passes over examples that leave a network as it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR

BLOCK = 500  # rows of one pass


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one data set is learned: one cycle of the learning rate, no augmentation."""

    make: Callable[[], nn.Sequential]
    batch_size: int
    lr: float  # the peak of the cycle
    is_adam: bool = False

    def optimizer(self, model: nn.Module) -> Optimizer:
        """The optimizer of a recipe."""
        if self.is_adam:
            return Adam(model.parameters(), lr=self.lr, weight_decay=1e-5)
        return SGD(model.parameters(), lr=self.lr, momentum=0.9, weight_decay=5e-4)

    def schedule(self, optimizer: Optimizer, steps: int) -> LRScheduler:
        """Call its ``step`` after each step of the optimizer."""
        return OneCycleLR(optimizer, self.lr, total_steps=steps + 1)


def _cnn() -> nn.Sequential:
    convolutions = (
        *(nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
    )
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(1568, 64), nn.ReLU(), nn.Linear(64, 10))


def _normed_cnn() -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 128)):
        convolution = nn.Conv2d(before, after, 3, padding=1, bias=False)
        layers += [convolution, nn.MaxPool2d(2), nn.BatchNorm2d(after), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 10))
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def _mlp_with_dropout() -> nn.Sequential:
    return nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 77))


RECIPES = {
    "digits": Recipe(_mlp, 32, 0.2),
    "fashion": Recipe(_cnn, 128, 0.05),
    "cifar10": Recipe(_normed_cnn, 128, 0.05),
    "banking77": Recipe(_mlp_with_dropout, 64, 2e-3, is_adam=True),
}


@torch.no_grad()
def predict(model: nn.Sequential, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Log probabilities ``[N, C]`` and what the head reads ``[N, D]``, in eval mode; the mode is put back."""
    was_training = model.training
    model.eval()
    features = torch.cat([model[:-1](block) for block in inputs.split(BLOCK)])
    found = model[-1](features).log_softmax(1)
    model.train(was_training)
    return found, features
