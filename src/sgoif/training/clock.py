"""Time on a device that may run behind the host, and what the monitor spends of it.

On a CPU the time inside our code is what it costs. On an accelerator kernels run later than the code that launches
them, so that time is only the host's share; the cost shows in whole steps, compared in pairs while both wait for the
device. That is done for a moment every few hundred steps. **The paired form has run with a CPU's clock only so far.**
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from statistics import median
from typing import Any

import torch

__all__ = ["PARTS", "Clock", "PairedProbe", "PairedReading", "StepKind", "StepTimer"]

RARE = frozenset({"curvature", "refresh"})  # done at some steps only
PARTS = ("scoring", *sorted(RARE))
_FIRST_PROBE, _PROBE_EVERY, _PAIRS = 100, 500, 4
_PATIENCE = 3  # as many times a window's length is waited; a plan that refreshes at every step never gives a pair


class Clock:
    """Seconds, and a way to wait until the device has finished all queued work.

    Args:
        device: what the training runs on.
        now: the host's clock.
    """

    def __init__(self, device: torch.device | str = "cpu", now: Callable[[], float] = time.perf_counter) -> None:
        self.device, self.now = torch.device(device), now

    @property
    def is_exact(self) -> bool:
        """Whether the host's time is the device's, so that nothing need be waited for."""
        return self.device.type == "cpu"

    def synchronise(self) -> None:
        """Wait for the device."""
        module: Any = getattr(torch, self.device.type, None)  # torch.cuda, torch.mps, torch.xpu, torch.cpu
        if hasattr(module, "synchronize"):
            module.synchronize()


class StepKind(Enum):
    """What the monitor does in one optimiser step."""

    SCORED = "scored"
    PASSED = "passed"  # between two scored steps of the plan: directions move on, nothing is scored
    BARE = "bare"  # nothing at all: half of a pair


@dataclass(frozen=True, slots=True)
class PairedReading:
    """What one window of pairs found, as shares of the bare step."""

    step: int
    bare_s: float
    shares: Mapping[str, float]  # by part, see PARTS

    @property
    def overhead(self) -> float:
        return max(sum(self.shares.values()), 0.0)


class PairedProbe:
    """Every few hundred steps, a window in which scored and bare steps take turns, timed whole.

    The median of each kind is compared. Rare work (curvature, refreshes) is timed on its own, taken out of the steps
    that hold it and spread over its period. Only in a window does anything wait for the device.

    Args:
        clock: of the device.
        first: the step at which the first window opens; the steps before it warm up.
        every: steps between two windows.
        pairs: scored and bare steps in a window. The visits of the bare ones are lost.
    """

    def __init__(
        self, clock: Clock, *, first: int = _FIRST_PROBE, every: int = _PROBE_EVERY, pairs: int = _PAIRS
    ) -> None:
        self.clock, self.every, self.pairs = clock, every, pairs
        self.next_window = first
        self.readings: list[PairedReading] = []
        self._times: dict[StepKind, list[float]] | None = None  # None between windows
        self._opened_at = 0
        self._last: float | None = None  # end of the step before, synchronised
        self._turn = 0
        self._rare: dict[str, float] = {}
        self._wanted: frozenset[str] = frozenset()  # rare work still to be timed
        self._bare_s = self._plain_s = 0.0  # of the window whose rare work is still waited for

    @property
    def is_timing(self) -> bool:
        """Whether a window is open, or rare work still to be timed after it."""
        return self._times is not None or bool(self._wanted)

    @property
    def synchronous_parts(self) -> frozenset[str]:
        """Rare work that should be timed with the device waited for."""
        return RARE if self._times is not None else self._wanted

    def open_step(self, step: int, *, may_be_bare: bool) -> bool:
        """Begin a step; True if it should be bare."""
        if step >= self.next_window and not self.is_timing:
            self._times = {kind: [] for kind in StepKind}
            self._opened_at, self._last, self._turn = step, None, 0
            self._rare, self._wanted = {}, RARE
        if self._times is None or self._last is None or not may_be_bare:
            return False  # the first step of a window gives the time at which the second one begins
        self._turn += 1
        return self._turn % 2 == 0

    def close_step(
        self, step: int, kind: StepKind, parts: Mapping[str, float], periods: Mapping[str, int], stride: int
    ) -> None:
        """End a step; the last one of a window makes a reading.

        Args:
            step: its number.
            kind: what was done in it.
            parts: seconds spent in each part of it.
            periods: steps between two pieces of each kind of rare work.
            stride: steps between two scored ones.
        """
        if not self.is_timing:
            return
        rare = {name: parts[name] for name in RARE if name in parts}
        if self._times is not None:
            self.clock.synchronise()
            now = self.clock.now()
            if self._last is not None:
                self._times[kind].append(now - self._last - sum(rare.values()))
            self._last = now
        for name in self._wanted & rare.keys():
            self._rare[name] = rare[name]
        self._wanted -= rare.keys()
        self._conclude(step, periods, stride)

    def _conclude(self, step: int, periods: Mapping[str, int], stride: int) -> None:
        times = self._times
        if times is not None and min(len(times[StepKind.SCORED]), len(times[StepKind.BARE])) >= self.pairs:
            bare = median(times[StepKind.BARE])
            scored = (median(times[StepKind.SCORED]) - bare) / stride
            passed = (median(times[StepKind.PASSED] or [bare]) - bare) * (1 - 1 / stride)
            self._bare_s, self._plain_s = bare, scored + passed
            self._times = None
        if not self.is_timing and self._bare_s > 0:
            shares = {"scoring": self._plain_s / self._bare_s}
            shares |= {name: self._rare[name] / periods[name] / self._bare_s for name in self._rare}
            self.readings.append(PairedReading(step, self._bare_s, shares))
            self.next_window = self._opened_at + self.every
        elif times is not None and step - self._opened_at > _PATIENCE * 2 * self.pairs * stride:
            self._times, self._wanted, self.next_window = None, frozenset(), step + self.every


class StepTimer:
    """Adds up what one optimiser step, of one or more micro-batches, spends in the monitor, by part."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.synchronous_parts: frozenset[str] = frozenset()  # waited for before and after
        self._parts: dict[str, float] = {}
        self._last_end: float | None = None
        self._inner = 0.0  # of the part that is open: seconds that belong to parts within it

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the time of a block to a part; a block within it is taken out of the outer one."""
        begun, outer, self._inner = self._now(name), self._inner, 0.0
        try:
            yield
        finally:
            spent = self._now(name) - begun
            self._parts[name] = self._parts.get(name, 0.0) + spent - self._inner
            self._inner = outer + spent

    @property
    def parts(self) -> dict[str, float]:
        """Seconds by part of the step that is under way, without blocks that are still open."""
        return self._parts

    def take(self) -> tuple[dict[str, float], float | None]:
        """End the step: seconds by part, and of the whole loop since the end of the step before, where known."""
        now = self.clock.now()
        parts, self._parts = self._parts, {}
        total = None if self._last_end is None else now - self._last_end
        self._last_end = now
        return parts, total

    def _now(self, name: str) -> float:
        if name in self.synchronous_parts:
            self.clock.synchronise()
        return self.clock.now()
