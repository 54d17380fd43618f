"""What watching costs on your own model and device: whole training steps with the monitor over the same steps without.

Both run in one process, on copies of the model, in blocks that go forward and backward in turn (bare, watched, watched,
bare), so that a slow drift of the machine falls on both alike. A block spans whole refresh periods, so that every cost
is in it. Where a step takes long, single steps take turns instead: a busy neighbour comes and goes within a block.
"""

from __future__ import annotations

import copy
import gc
import inspect
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

from sgoif.api import watch
from sgoif.errors import SgoifError
from sgoif.settings import Budget
from sgoif.training.schedule import Plan

__all__ = ["BenchLoop", "BenchResult", "Ratio", "Timings", "alternate", "bench"]

NUM_RESAMPLES = 10_000
_LONG_STEP_S = 0.05  # such a step finds nothing of the last one in the caches, so that turns of one step are fair

Batch = tuple[Any, Tensor]  # inputs and labels
MakeOptimizer = Callable[[Any], torch.optim.Optimizer]


@dataclass(frozen=True, slots=True)
class BenchResult:
    """A training step with the monitor over the same step without; printing it gives one line."""

    ratio: float  # median over rounds
    low: float  # bootstrap 95% interval of it; with few rounds narrower than the truth
    high: float
    bare_ms: float
    watched_ms: float
    bare_peak_mb: float | None  # accelerators only: a process cannot tell its parts apart
    watched_peak_mb: float | None
    timings: Timings

    def __str__(self) -> str:
        ends = f" [{self.low:.3f}, {self.high:.3f}]" if len(self.timings.seconds) > 1 else " (one round, no interval)"
        line = f"a training step takes {self.bare_ms:.1f} ms bare, and {self.ratio:.3f} times as long watched{ends}"
        if self.bare_peak_mb is None or self.watched_peak_mb is None:
            return line
        return f"{line}; peak memory {self.bare_peak_mb:.0f} and {self.watched_peak_mb:.0f} MiB"


def bench(
    model: nn.Module,
    batch: Batch | Callable[[], Batch],
    *,
    blocks: int = 6,
    steps_per_block: int | None = None,
    warmup: int = 5,
    **arguments: Any,
) -> BenchResult:
    """Measure what :func:`sgoif.watch` costs beside a bare training loop of your model, on the device it lies on.

    The model is copied twice and stays as it is. The copies train on the same batch over and over: time does not depend
    on what the pictures show. The governor is off unless ``budget=`` is passed, so that the plan's whole price is
    seen: that of a long training, without the further refreshes of its first steps.

    Args:
        model: on the device to measure on.
        batch: inputs and labels as the training loop sees them, or a function that makes such a pair.
        blocks: of each kind; even, since a round has two.
        steps_per_block: the plan's ``refresh_every`` by default; a multiple of it keeps every cost in every block.
        warmup: steps of each kind before the clock starts.
        arguments: of the training. ``optimizer``: an optimiser, of which class and settings are taken, or a function
            from parameters to one; SGD with momentum by default. ``loss``: outputs and labels to *per-example* losses,
            whose mean is trained on; cross-entropy by default. ``forward``: model and inputs to logits. ``anchors``:
            the hold-out; by default as many copies of the batch as a refresh reads. ``autocast``: train under autocast
            to this dtype. Whatever else :func:`sgoif.watch` takes.

    Raises:
        SgoifError: the monitor could not score a step, so that there was nothing to measure.

    >>> batch = torch.randn(32, 8), torch.arange(32) % 4
    >>> print(bench(nn.Linear(8, 4), batch, blocks=2))  # doctest: +ELLIPSIS
    a training step takes ... ms bare, and ... times as long watched (one round, no interval)
    """
    device = next(model.parameters()).device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        bare = BenchLoop(model, batch, is_watched=False, **arguments)
        bare_peak = _peak_mb(device, bare.step, warmup)
        watched = BenchLoop(model, batch, **arguments)
        every = watched.refresh_every
        resting = _count_allocated_mb(device, bare)
        watched_peak = _peak_mb(device, watched.step, max(warmup, every + 1))
        bare.step()
        start = _read_clock(device)
        bare.step()
        took = _read_clock(device) - start
        timings = alternate(
            {"bare": bare.step, "watched": watched.step},
            blocks=blocks,
            steps_per_block=steps_per_block or every,
            warmup=warmup,
            clock=lambda: _read_clock(device),
            turn=1 if took > _LONG_STEP_S else None,
        )
    watched.check()
    ratio = timings.ratio("watched")
    bare_ms, watched_ms = (1e3 * timings.median_s(name) for name in ("bare", "watched"))
    watched_peak = None if watched_peak is None else watched_peak - resting
    return BenchResult(ratio.value, ratio.low, ratio.high, bare_ms, watched_ms, bare_peak, watched_peak, timings)


class BenchLoop:
    """A training loop on a copy of a model and one batch; :func:`bench` says what the arguments mean."""

    def __init__(
        self,
        model: nn.Module,
        batch: Batch | Callable[[], Batch],
        *,
        is_watched: bool = True,
        optimizer: torch.optim.Optimizer | MakeOptimizer | None = None,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
        forward: Callable[[nn.Module, Any], Tensor] | None = None,
        anchors: tuple[Tensor, Tensor] | Dataset[Any] | None = None,
        autocast: torch.dtype | None = None,
        **watch_arguments: Any,
    ) -> None:
        self.model = copy.deepcopy(model).train()
        self.optimizer = _make_optimizer(optimizer, self.model)
        self._make_batch = batch if callable(batch) else lambda: batch
        self._loss, self._forward, self._autocast = loss, forward, autocast
        self._device, self.step_count, self.refresh_every = next(model.parameters()).device, 0, 1
        self.monitor: Any = None
        if is_watched:
            budget = Budget(plan=Plan(early_steps=0), keep_visits="none")
            arguments = {"budget": budget, "train_size": 50_000, **watch_arguments}
            plan = arguments["budget"].plan or Plan()
            self.refresh_every = plan.refresh_every
            held = anchors or _Repeated(*self._make_batch(), max(1000, plan.examples_per_refresh))
            if forward is not None:
                arguments["forward"] = lambda inputs: forward(self.model, inputs)
            if loss is not None:
                arguments["loss"] = loss
            self.monitor = watch(self.model, self.optimizer, anchors=held, **arguments)

    def step(self) -> None:
        """Do one training step."""
        inputs, labels = self._make_batch()
        ids = torch.arange(len(labels)) + len(labels) * (self.step_count % 200)
        with nullcontext() if self.monitor is None else self.monitor.step(ids, labels):
            with self._precision():
                outputs = self.model(inputs) if self._forward is None else self._forward(self.model, inputs)
                if self._loss is not None:
                    losses = self._loss(outputs, labels)
            if self._loss is None:
                losses = F.cross_entropy(outputs.float() if self._autocast else outputs, labels, reduction="none")
            losses.mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step_count += 1

    def check(self) -> None:
        """Raise if the monitor failed at any step, for then its price was not what was measured."""
        if self.monitor is not None:
            self.monitor.flush()  # scores what waits
        faults = getattr(self.monitor, "faults", {})
        if faults:
            raise SgoifError(f"the monitor could not score every step, so its price was not measured: {faults}.")

    def _precision(self) -> AbstractContextManager[object]:
        return nullcontext() if self._autocast is None else torch.autocast(self._device.type, self._autocast)


class _Repeated(Dataset[Any]):
    """A batch read over and over, as a hold-out of any size without its memory."""

    def __init__(self, inputs: Any, labels: Tensor, size: int) -> None:
        if not isinstance(inputs, Tensor):
            raise SgoifError(f"pass anchors=: a hold-out can only be made of a batch of tensors, not {type(inputs)}.")
        self._inputs, self._size = inputs, size
        self.targets = labels.cpu().repeat(-(-size // len(labels)))[:size]

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self._inputs[index % len(self._inputs)], int(self.targets[index])


@dataclass(frozen=True, slots=True)
class Ratio:
    """A time divided by that of the first variant, with a bootstrap 95% interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f}x [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds per step of every variant in every round."""

    names: tuple[str, ...]  # the first one is the baseline
    seconds: NDArray[np.float64]  # [R, V] rounds by variants

    def median_s(self, name: str) -> float:
        """Give the median seconds per step of a variant."""
        return float(np.median(self.seconds[:, self.names.index(name)]))

    def ratio(self, name: str) -> Ratio:
        """Divide a variant by the baseline round by round, and take the median.

        The interval is the percentile bootstrap over rounds. With few rounds it is narrower than the truth.
        """
        paired = self.seconds[:, self.names.index(name)] / self.seconds[:, 0]
        draws = np.random.default_rng(0).integers(0, len(paired), (NUM_RESAMPLES, len(paired)))
        low, high = np.quantile(np.median(paired[draws], axis=1), [0.025, 0.975])
        return Ratio(float(np.median(paired)), float(low), float(high))

    def summary(self) -> dict[str, dict[str, float]]:
        """Collect medians and ratios of all variants in plain numbers, for the raw results."""
        return {
            name: {
                "median_s": self.median_s(name),
                "ratio": ratio.value,
                "ratio_low": ratio.low,
                "ratio_high": ratio.high,
            }
            for name, ratio in zip(self.names, map(self.ratio, self.names))
        }


def alternate(
    variants: Mapping[str, Callable[[], None]],
    blocks: int = 10,
    steps_per_block: int = 50,
    warmup: int = 10,
    clock: Callable[[], float] = time.perf_counter,
    turn: int | None = None,
) -> Timings:
    """Time variants in interleaved blocks: each round runs all of them forward, then all of them backward.

    A variant's time in a round is the mean over its two blocks, which cancels a linear drift within the round. With
    ``turn``, blocks are cut into turns of so many steps, and these go forward and backward.

    Args:
        variants: Name to a function that does one step; the first is the baseline.
        blocks: Blocks per variant; even, since a round has two.
        steps_per_block: Steps in a block.
        warmup: Steps of each variant before the clock starts.
        clock: Reads the time in seconds.
        turn: Steps in a row; divides ``steps_per_block``, which it is if left out.
    """
    turn = steps_per_block if turn is None else turn
    if blocks < 2 or blocks % 2:
        raise ValueError(f"blocks must be even and positive, since every round has two of each variant, got {blocks}")
    if not variants or steps_per_block < 1:
        raise ValueError("nothing to time: pass at least one variant and one step per block")
    if turn < 1 or steps_per_block % turn:
        raise ValueError(f"a turn must divide the {steps_per_block} steps of a block, got {turn}")
    names = tuple(variants)
    for step in variants.values():
        for _ in range(warmup):
            step()
    seconds = np.zeros((blocks // 2, len(names)))
    for round_index in range(blocks // 2):
        gc.collect()  # so that no variant pays for the garbage of an earlier round
        for position in (*range(len(names)), *reversed(range(len(names)))) * (steps_per_block // turn):
            step = variants[names[position]]
            start = clock()
            for _ in range(turn):
                step()
            seconds[round_index, position] += (clock() - start) / (2 * steps_per_block)
    return Timings(names, seconds)


def _make_optimizer(given: torch.optim.Optimizer | MakeOptimizer | None, model: nn.Module) -> torch.optim.Optimizer:
    parameters = [p for p in model.parameters() if p.requires_grad]
    if given is None:
        return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)
    if isinstance(given, torch.optim.Optimizer):
        known = inspect.signature(type(given)).parameters  # some keep more among their defaults than they accept
        return type(given)(parameters, **{name: value for name, value in given.defaults.items() if name in known})
    return given(parameters)


def _read_clock(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # kernels run later than the code that launches them
    elif device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter()


def _peak_mb(device: torch.device, step: Callable[[], None], steps: int) -> float | None:
    if device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats(device)
    for _ in range(steps):
        step()
    return torch.cuda.max_memory_allocated(device) / 2**20


def _count_allocated_mb(device: torch.device, loop: BenchLoop) -> float:
    """What the bare loop holds between two steps: its parameters and the optimiser's state."""
    if device.type != "cuda":
        return 0.0
    state = [value for entry in loop.optimizer.state.values() for value in entry.values() if isinstance(value, Tensor)]
    return sum(t.numel() * t.element_size() for t in (*loop.model.parameters(), *state)) / 2**20
