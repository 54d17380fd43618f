"""The networks whose inputs are judged: trained here, one per dataset and seed, and kept in the cache.

The last 2,000 train images are never trained on. They are what a user calibrates with; false-alarm rates are counted on
the test images.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks import cache, context, data, loops
from benchmarks.models import ResNet9

HELD = 2_000  # train images that are held back from training
BATCH = 500

DATASETS = {"mnist": data.mnist, "fashion": data.fashion_mnist, "cifar10": data.cifar10}
_STATS = {"mnist": data.MNIST_STATS, "fashion": data.FASHION_MNIST_STATS, "cifar10": data.CIFAR10_STATS}
_RECIPES = {
    "mnist": loops.Recipe(num_epochs=2, lr=0.05, bf16=False),
    "fashion": loops.Recipe(num_epochs=3, lr=0.05, bf16=False),
    "cifar10": loops.Recipe(num_epochs=5),
}


class LeNet(nn.Module):
    """Two convolutions and two linear layers for grey 28×28 images, without norms (LeCun et al. 1998, with ReLU)."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 5, padding=2)
        self.conv2 = nn.Conv2d(16, 32, 5)
        self.hidden = nn.Linear(32 * 5 * 5, 128)
        self.head = nn.Linear(128, num_classes)

    def forward(self, images: Tensor) -> Tensor:  # [N, 1, 28, 28] -> [N, C]
        x = F.max_pool2d(F.relu(self.conv1(images)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2).flatten(1)
        return self.head(F.relu(self.hidden(x)))


@dataclass(frozen=True, slots=True)
class Subject:
    """A trained network, in eval mode."""

    dataset: str
    seed: int
    model: nn.Module
    accuracy: float  # on the test images
    seconds: float  # of its training

    def inputs(self, pixels: NDArray[np.uint8]) -> Tensor:
        """What the network takes, of pixels in the dataset's size and channels."""
        return inputs_of(self.dataset, pixels)


def inputs_of(dataset: str, pixels: NDArray[np.uint8]) -> Tensor:
    """Normalise pixels as the dataset's train images are."""
    return data.normalise(pixels, *_STATS[dataset]).contiguous(memory_format=torch.channels_last)


def prepare(dataset: str, seed: int) -> Subject:
    """Train a network, or read it from the cache."""
    model = _model(dataset, seed)

    def make() -> dict[str, Any]:
        seconds = _train(model, dataset, seed)
        test = DATASETS[dataset]("test")
        labels = torch.from_numpy(test.labels)
        right = loops.accuracy(model, inputs_of(dataset, test.pixels), labels, loops.Recipe(bf16=False), BATCH)
        return {"weights": model.state_dict(), "accuracy": right, "seconds": seconds}

    kept = cache.keep(f"ood/{'-'.join(map(str, (dataset, seed, *context.changed().values())))}.pt", make)
    model.load_state_dict(kept["weights"])
    return Subject(dataset, seed, model.eval(), kept["accuracy"], kept["seconds"])


def _model(dataset: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = ResNet9() if dataset == "cifar10" else LeNet()
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _train(model: nn.Module, dataset: str, seed: int) -> float:
    train = DATASETS[dataset]("train").take(slice(0, -HELD))
    images, labels, recipe = inputs_of(dataset, train.pixels), torch.from_numpy(train.labels), _RECIPES[dataset]
    started = time.process_time()
    if dataset == "cifar10":
        loops.train(model, images, labels, recipe, seed)
    else:
        _train_upright(model, images, labels, recipe, seed)
    return time.process_time() - started


def _train_upright(model: nn.Module, images: Tensor, labels: Tensor, recipe: loops.Recipe, seed: int) -> None:
    """The recipe without flips, which make no digits."""
    generator, optimizer = torch.Generator().manual_seed(seed), loops.optimiser(model, recipe)
    scheduler = loops.schedule(optimizer, recipe, len(images))
    model.train()
    for _ in range(recipe.num_epochs):
        for indices in torch.randperm(len(images), generator=generator).split(recipe.batch_size):
            optimizer.zero_grad()
            F.cross_entropy(model(images[indices]), labels[indices]).backward()
            optimizer.step()
            scheduler.step()
