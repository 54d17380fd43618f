"""A training whose head has any size, behind a trunk whose cost is known; time is kept by step and part of the monitor.

Time is that of the processor, which other programs on the machine do not change.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sgoif
from sgoif import api
from sgoif.distributed import Peers
from sgoif.training.clock import PARTS, Clock, StepTimer
from sgoif.training.monitor import Monitor


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a training."""

    examples: int = 50_000  # n
    classes: int = 10  # K
    width: int = 512  # d, inputs of the head
    batch: int = 64
    trunk: int = 1024  # width of the two layers before the head's inputs
    pixels: int = 256

    @property
    def holdout(self) -> int:
        return max(1000, 20 * self.classes)

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        sizes = (self.pixels, self.trunk, self.trunk, self.width)
        layers = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
        return nn.Sequential(*layers, nn.Linear(self.width, self.classes))

    def inputs(self, count: int) -> tuple[Tensor, Tensor]:
        torch.manual_seed(1)
        return torch.randn(count, self.pixels), torch.arange(count) % self.classes


class _KeptTimer(StepTimer):
    """Keeps the seconds of each step's parts."""

    def __init__(self) -> None:
        super().__init__(Clock("cpu", time.process_time))
        self.steps: list[dict[str, float]] = []

    def take(self) -> tuple[dict[str, float], float | None]:
        parts, total = super().take()
        self.steps.append(parts)
        return parts, total


class Loop:
    """One rank's training, on one batch over and over but with ids drawn anew from all examples.

    The peers are those of the process group, if there is one, unless they are given.
    """

    def __init__(self, shape: Shape, is_watched: bool = True, peers: Peers | None = None, **settings: Any) -> None:
        self.shape, self.model = shape, shape.model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        self.batch = shape.inputs(shape.batch)
        self._ids = torch.Generator().manual_seed(2)
        self.monitor: Monitor | None = None
        if is_watched:
            budget = sgoif.Budget(plan=sgoif.Plan(early_steps=0), keep_visits="none")
            known: dict[str, Any] = {"train_size": shape.examples, "trusted": True, "budget": budget, **settings}
            with _find(peers):
                found = sgoif.watch(self.model, self.optimizer, anchors=shape.inputs(shape.holdout), **known)
            assert isinstance(found, Monitor)
            self.monitor, self.timer = found, _KeptTimer()
            found.governor.timer = self.timer

    def step(self) -> None:
        inputs, labels = self.batch
        around: AbstractContextManager[Any] = nullcontext()
        if self.monitor is not None:
            around = self.monitor.step(torch.randint(self.shape.examples, labels.shape, generator=self._ids), labels)
        with around:
            F.cross_entropy(self.model(inputs), labels).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
        assert self.monitor is None or self.monitor.faults == {}, self.monitor.faults

    def own_seconds(self) -> dict[str, float]:
        """What the monitor takes per step by part, over the steps that do it and spread over its period.

        Means: the batches of many steps are scored in one of them, and above 256 classes one refresh in four
        scores the hold-out.
        """
        assert self.monitor is not None
        plan, timed = self.monitor.plan, self.timer.steps[1:]  # the first one makes everything for the first time
        every = dict.fromkeys(PARTS, plan.refresh_every) | {"scoring": plan.stride}
        found = {name: [parts[name] for parts in timed if name in parts] for name in PARTS}
        return {name: mean(seconds) / every[name] if seconds else 0.0 for name, seconds in found.items()}


def _find(peers: Peers | None) -> AbstractContextManager[Any]:
    """Have :func:`sgoif.watch` find these ranks; None leaves it to find its own."""
    return nullcontext() if peers is None else patch.object(api, "find_peers", lambda *_, **__: peers)
