"""What every rival is given: the data of a setting and seed, and one bare training on it.

The training is that of ``benchmarks.label_noise``: same network, recipe, seeds and batches, without the monitor. What
it leaves behind is what a user could have kept: the outputs of every visit and a few checkpoints.

Seconds are processor seconds of the one thread that works, so that other processes on the machine do not count.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from benchmarks import data, loops, noise
from benchmarks.models import ResNet9
from benchmarks.trainings import Setup, draw_parts
from sgoif.tasks.classification import margins

NUM_CHECKPOINTS = 5

Group = Literal["label-free", "trusted"]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Case:
    """The data of one setting and seed. Only the report knows ``clean``."""

    images: Tensor  # [N, 3, H, W], normalised, channels last
    given: Tensor  # [N]
    clean: NDArray[np.int64]  # [N]
    trusted_images: Tensor  # [M, 3, H, W]
    trusted_labels: Tensor  # [M]
    num_classes: int
    recipe: loops.Recipe
    seed: int

    @property
    def wrong(self) -> NDArray[np.bool_]:
        return self.given.numpy() != self.clean


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The network at one moment, and the mean learning rate since the checkpoint before it."""

    state: dict[str, Tensor]
    learning_rate: float


@dataclass(frozen=True, slots=True)
class Bare:
    """One training by the bare recipe. ``seconds`` is its price, without what was kept for the rivals."""

    model: ResNet9  # finished, in eval mode
    checkpoints: list[Checkpoint]
    visits: dict[str, NDArray[Any]]  # one row per visit: id, epoch, loss, margin, p_given, el2n
    seconds: float
    seconds_recording: float  # what the visits cost


@dataclass(frozen=True, slots=True)
class Found:
    """What a rival says: a score per example, high where it is suspicious, and its price beside the bare training."""

    scores: Floats  # [N]
    seconds: float
    group: Group = "label-free"
    flags: NDArray[np.bool_] | None = None  # where the method decides instead of ranking only


@dataclass(slots=True)
class Clock:
    seconds: float = 0.0


@contextmanager
def stopwatch(clock: Clock | None = None) -> Iterator[Clock]:
    """Add the processor seconds of a block to a clock."""
    running = clock or Clock()
    started = time.process_time()
    yield running
    running.seconds += time.process_time() - started


def make_case(setup: Setup) -> Case:
    """Draw the data of a setup, the same as the monitored training of that setup has."""
    split, stats = draw_parts(setup)
    split = noise.thin_classes(setup.setting, split)
    given = noise.apply_to_split(setup.setting, split, setup.seed, setup.dataset)[0]
    images, trusted = (
        data.normalise(part.pixels, *stats).contiguous(memory_format=torch.channels_last)
        for part in (split.train, split.trusted)
    )
    return Case(
        images=images,
        given=torch.from_numpy(given.astype(np.int64)),
        clean=split.train.labels,
        trusted_images=trusted,
        trusted_labels=torch.from_numpy(split.trusted.labels),
        num_classes=split.train.num_classes,
        recipe=loops.Recipe(num_epochs=setup.epochs, cycles=setup.cycles),
        seed=setup.seed,
    )


def fresh_model(case: Case) -> ResNet9:
    """Build the network as every training of this seed starts."""
    torch.manual_seed(case.seed)
    model = ResNet9(num_classes=case.num_classes)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def train_bare(case: Case) -> Bare:
    """Train once by the bare recipe, keeping the outputs of every visit and evenly spaced checkpoints."""
    model, recording, saving = fresh_model(case), Clock(), Clock()
    rates = learning_rates(case)
    ends = np.linspace(0, len(rates), NUM_CHECKPOINTS + 1).round().astype(int)
    checkpoints: list[Checkpoint] = []
    visits: dict[str, list[Tensor]] = {name: [] for name in ("id", "epoch", "loss", "margin", "p_given", "el2n")}

    def after_step(batch: loops.Batch, logits: Tensor) -> None:
        with stopwatch(recording):
            p, labels = logits.softmax(1), batch.labels
            visits["id"].append(batch.indices)
            visits["epoch"].append(torch.full_like(batch.indices, batch.epoch))
            visits["loss"].append(F.cross_entropy(logits, labels, reduction="none"))
            visits["margin"].append(margins(logits, labels))
            visits["p_given"].append(p[torch.arange(len(labels)), labels])
            visits["el2n"].append((p - F.one_hot(labels, logits.shape[1])).norm(dim=1))
        if batch.step + 1 in ends[1:]:
            with stopwatch(saving):
                since = ends[len(checkpoints)]
                state = {name: value.detach().clone() for name, value in model.state_dict().items()}
                checkpoints.append(Checkpoint(state, float(np.mean(rates[since : batch.step + 1]))))

    with stopwatch() as whole:
        loops.train(model, case.images, case.given, case.recipe, case.seed, after_step)
    seconds = whole.seconds - recording.seconds - saving.seconds
    joined = {name: torch.cat(column).cpu().numpy() for name, column in visits.items()}
    return Bare(model.eval(), checkpoints, joined, seconds, recording.seconds)


def learning_rates(case: Case) -> list[float]:
    """List the learning rate of every step."""
    optimizer = loops.optimiser(torch.nn.Linear(1, 1), case.recipe)
    scheduler = loops.schedule(optimizer, case.recipe, len(case.images))
    rates = []
    for _ in range(case.recipe.num_epochs * case.recipe.steps_per_epoch(len(case.images))):
        rates.append(float(scheduler.get_last_lr()[0]))
        optimizer.step()
        scheduler.step()
    return rates


@torch.no_grad()
def outputs(model: torch.nn.Module, images: Tensor, recipe: loops.Recipe, batch_size: int = 500) -> Tensor:
    """Compute the logits of images in eval mode, under the precision of the recipe."""
    model.eval()
    return torch.cat([loops.logits(model, part, recipe) for part in images.split(batch_size)])
