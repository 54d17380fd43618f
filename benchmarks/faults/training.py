"""What is trained: a small network on pictures of Fashion-MNIST, in a loop as users write it; and what is told."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sgoif
from benchmarks import data

PLAN = sgoif.Plan(refresh_every=8, examples_per_refresh=100, observe_every=4)
Spoil = Callable[[int, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Row:
    """One fault: how often it was tried, what came of it, and whether that is what was promised."""

    fault: str
    tried: int
    outcome: str
    met: bool
    figures: dict[str, Any]

    @staticmethod
    def of(fault: str, found: list[dict[str, Any]], met: bool, outcome: str, **figures: Any) -> Row:
        """A row of one trial or more, which says so where it was not as promised."""
        told = outcome if met else f"**not as promised** {found[0]}"
        return Row(fault, len(found), told, met, {"runs": found, **figures})


@dataclass(frozen=True)
class Pictures:
    """Normalised pixels with their labels, and a hold-out."""

    pixels: Tensor  # [N, 1, 28, 28]
    labels: Tensor
    held: tuple[Tensor, Tensor]


class Net(nn.Module):
    """Two strided convolutions and a head; no example sees another."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(1, width, 3, stride=2), nn.GroupNorm(2, width), nn.ReLU()),
            *(nn.Conv2d(width, 2 * width, 3, stride=2), nn.GroupNorm(2, 2 * width), nn.ReLU()),
        )
        self.head = nn.Linear(2 * width, 10)

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(images).mean((2, 3)))
        return out


def load_pictures(num_train: int = 2000, num_held: int = 200) -> Pictures:
    images = data.fashion_mnist("train", num_train + num_held)
    pixels = data.normalise(images.pixels[: num_train + num_held], *data.FASHION_MNIST_STATS)
    labels = torch.from_numpy(images.labels[: num_train + num_held])
    return Pictures(pixels[:num_train], labels[:num_train], (pixels[num_train:], labels[num_train:]))


def fresh() -> Net:
    torch.manual_seed(0)
    return Net()


def batches(num_examples: int, size: int) -> Iterator[Tensor]:
    """Positions of one batch after the other, the same every time."""
    generator = torch.Generator().manual_seed(1)
    while True:
        yield torch.randperm(num_examples, generator=generator)[:size]


class Training:
    """One training, watched with some settings of :func:`sgoif.watch`, or bare where they are None.

    A step whose gradient is not finite is skipped, as users do. ``spoil`` takes step, outputs and loss to the loss that
    is back-propagated.
    """

    def __init__(
        self, pictures: Pictures, settings: dict[str, Any] | None, *, batch: int = 64, spoil: Spoil | None = None
    ) -> None:
        self.pictures, self.model, self._spoil = pictures, fresh(), spoil
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.monitor: Any = None
        if settings is not None:
            known = {"anchors": pictures.held, "train_size": len(pictures.labels), "trusted": True}
            known["budget"] = sgoif.Budget(plan=PLAN)
            self.monitor = sgoif.watch(self.model, self.optimizer, **{**known, **settings})
        self._batches = batches(len(pictures.labels), batch)
        self.num_steps, self.num_skipped = 0, 0
        self.step_s: list[float] = []

    def steps(self, count: int) -> None:
        """Do some steps, each timed."""
        for _ in range(count):
            begun = time.perf_counter()
            self._step(next(self._batches))
            self.step_s.append(time.perf_counter() - begun)

    def _step(self, picked: Tensor) -> None:
        images, labels = self.pictures.pixels[picked], self.pictures.labels[picked]
        around: AbstractContextManager[Any] = nullcontext()
        if self.monitor is not None:
            around = self.monitor.step(picked, labels)
        with around:
            outputs = self.model(images)
            loss = F.cross_entropy(outputs, labels)
            (loss if self._spoil is None else self._spoil(self.num_steps, outputs, loss)).backward()
        if nn.utils.clip_grad_norm_(self.model.parameters(), 10.0).isfinite():
            self.optimizer.step()
        else:
            self.num_skipped += 1
        self.optimizer.zero_grad()
        self.num_steps += 1


def same_weights(first: nn.Module, second: nn.Module | Mapping[str, Tensor]) -> bool:
    """Whether two models are the same to the bit."""
    other = second.state_dict() if isinstance(second, nn.Module) else second
    return all(torch.equal(value, other[name]) for name, value in first.state_dict().items())


@contextmanager
def count_warnings() -> Iterator[list[str]]:
    """The warnings of the store in here, in place of where they would go."""
    told: list[str] = []
    logger, handler = logging.getLogger("sgoif.store"), logging.Handler(logging.WARNING)
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    before, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield told
    finally:
        logger.removeHandler(handler)
        logger.propagate = before
