"""The tier-M training recipe in pieces, so that a benchmark can drive its own step.

One-cycle SGD on cached tensors, batches of 250, flip and shift for the whole batch at once, bf16 autocast. Everything
random comes from one generator: the same seed gives the same batches whatever else the process draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

import sgoif
from benchmarks.context import CONTEXT
from sgoif.training.monitor import Monitor


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Settings of one training run; the defaults are tier M."""

    num_epochs: int = 10
    batch_size: int = 250
    lr: float = 0.2  # the peak of the cycle
    momentum: float = 0.9
    weight_decay: float = 5e-4
    warmup: float = 0.2  # share of the steps before the peak
    cycles: int = 1  # more than one: so many cosines, each restarting at half the peak, instead of one cycle
    max_shift: int = 3  # pixels
    bf16: bool = True

    def steps_per_epoch(self, num_examples: int) -> int:
        """Count the steps of an epoch; the last batch may be short."""
        return math.ceil(num_examples / self.batch_size)


class Batch(NamedTuple):
    """What one training step sees."""

    step: int  # counted from 0 over all epochs
    epoch: int
    indices: Tensor  # [B], positions in the training tensors
    images: Tensor  # [B, 3, H, W], augmented, channels last
    labels: Tensor  # [B]


def epochs(images: Tensor, labels: Tensor, recipe: Recipe, seed: int) -> Iterator[Batch]:
    """Yield every augmented batch of a run: each epoch in a new order, each example once per epoch."""
    generator = torch.Generator().manual_seed(seed)
    step = 0
    for epoch in range(recipe.num_epochs):
        for indices in torch.randperm(len(images), generator=generator).split(recipe.batch_size):
            inputs = augment(images[indices].to(CONTEXT.device), generator, recipe.max_shift)
            yield Batch(step, epoch, indices, inputs, labels[indices].to(CONTEXT.device))
            step += 1


def augment(images: Tensor, generator: torch.Generator, max_shift: int = 3) -> Tensor:
    """Flip the whole batch with probability 1/2 and roll it by up to ``max_shift`` pixels along each side.

    One draw per batch instead of one per image: cheaper, and as good for runs of this length.
    """
    if torch.rand((), generator=generator) < 0.5:
        images = images.flip(3)
    down, right = torch.randint(-max_shift, max_shift + 1, (2,), generator=generator).tolist()
    return torch.roll(images, (down, right), (2, 3)).contiguous(memory_format=torch.channels_last)


def optimiser(model: nn.Module, recipe: Recipe) -> SGD:
    """Make the SGD optimiser of a recipe, with Nesterov momentum."""
    return SGD(
        model.parameters(),
        lr=recipe.lr,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        nesterov=recipe.momentum > 0,
    )


def schedule(optimizer: SGD, recipe: Recipe, num_examples: int) -> LRScheduler:
    """Make the schedule of a recipe; call its ``step`` after every optimiser step."""
    total = recipe.num_epochs * recipe.steps_per_epoch(num_examples)
    if recipe.cycles > 1:
        length = math.ceil(total / recipe.cycles)

        def factor(step: int) -> float:
            restarted = 0.25 * (1 + math.cos(math.pi * (step % length) / length))
            return restarted * min(1.0, (step + 1) / (0.05 * total))  # the first of them needs a warm-up

        return LambdaLR(optimizer, factor)
    return OneCycleLR(optimizer, recipe.lr, total_steps=total, pct_start=recipe.warmup)


def autocast(recipe: Recipe) -> AbstractContextManager[object]:
    """Open the precision of a recipe: bf16 autocast, or none."""
    is_on = recipe.bf16 and CONTEXT.amp == "bf16"
    return torch.autocast(torch.device(CONTEXT.device).type, torch.bfloat16, enabled=is_on)


def logits(model: nn.Module, images: Tensor, recipe: Recipe) -> Tensor:
    """Compute float32 logits under the precision of a recipe."""
    with autocast(recipe):
        return model(images.to(CONTEXT.device)).float()


def train(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    recipe: Recipe,
    seed: int,
    after_step: Callable[[Batch, Tensor], None] | None = None,
) -> None:
    """Train a model in place by the bare recipe: the baseline that instrumented loops are compared with.

    Build the model under ``torch.manual_seed`` for a repeatable start. ``after_step`` gets the batch and its logits.
    """
    optimizer = optimiser(model, recipe)
    scheduler = schedule(optimizer, recipe, len(images))
    model.train()
    for batch in epochs(images, labels, recipe, seed):
        outputs = logits(model, batch.images, recipe)
        optimizer.zero_grad()
        F.cross_entropy(outputs, batch.labels).backward()
        optimizer.step()
        scheduler.step()
        if after_step is not None:
            after_step(batch, outputs.detach())


def watch(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    recipe: Recipe,
    seed: int,
    *,
    ids: Tensor | None = None,
    method: sgoif.Method | None = None,
    before_step: Callable[[Monitor, int], None] | None = None,
    after_step: Callable[[Batch, Tensor], None] | None = None,
    **settings: Any,
) -> Monitor:
    """Train as :func:`train` does, under ``sgoif.watch`` with these settings; the monitor is not closed yet."""
    optimizer = optimiser(model, recipe)
    scheduler = schedule(optimizer, recipe, len(images))
    steps = recipe.num_epochs * recipe.steps_per_epoch(len(images))
    method = replace(method or sgoif.Method(), planned_steps=steps)
    monitor = sgoif.watch(model, optimizer, train_size=len(images), seed=seed, method=method, **settings)
    assert isinstance(monitor, Monitor), "SGOIF_DISABLE is set"
    model.train()
    for batch in epochs(images, labels, recipe, seed):
        if before_step is not None:
            before_step(monitor, batch.step)
        with monitor.step(batch.indices if ids is None else ids[batch.indices], batch.labels):
            outputs = logits(model, batch.images, recipe)
            F.cross_entropy(outputs, batch.labels).backward()
        if after_step is not None:
            after_step(batch, outputs.detach())
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    return monitor


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor, recipe: Recipe, batch_size: int = 1_000) -> float:
    """Compute the share of images whose largest logit is the label's, in eval mode; the mode is put back."""
    was_training = model.training
    model.eval()
    parts = range(0, len(images), batch_size)
    predicted = torch.cat([logits(model, images[i : i + batch_size], recipe).argmax(1).cpu() for i in parts])
    model.train(was_training)
    return (predicted == labels).float().mean().item()
