"""When to observe, refresh and score, and the governor that keeps the price of it under a promise."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass, replace
from typing import Any

from sgoif.errors import SgoifError

__all__ = ["Governor", "Plan"]

_LONGEST_REFRESH, _LONGEST_OBSERVE, _LONGEST_STRIDE = 160, 40, 16


@dataclass(frozen=True, slots=True)
class Plan:
    """What the monitor does at which step. Changes only at refreshes, and is written into the run.

    >>> Plan().is_refresh(40), Plan().is_observe(43)
    (True, False)
    """

    refresh_every: int = 20  # steps between two looks at the hold-out
    examples_per_refresh: int = 256
    layers: tuple[str, ...] = ()  # scored beside the head
    rank: int = 16  # of their projection
    stride: int = 1  # score every so many steps
    observe_every: int = 5  # steps between two updates of curvature

    def __post_init__(self) -> None:
        numbers = {key: value for key, value in asdict(self).items() if key != "layers"}
        wrong = {key: value for key, value in numbers.items() if not (isinstance(value, int) and value >= 1)}
        if wrong:
            raise SgoifError(f"a plan's numbers are whole and at least 1, got {wrong}.")

    def is_refresh(self, step: int) -> bool:
        return step % self.refresh_every == 0

    def is_observe(self, step: int) -> bool:
        return step % self.observe_every == 0

    def is_scored(self, step: int) -> bool:
        return step % self.stride == 0

    def cheaper(self) -> Plan | None:
        """The next plan down: rarer refreshes first, then rarer curvature, then scoring only some steps."""
        if self.refresh_every < _LONGEST_REFRESH:
            return replace(self, refresh_every=2 * self.refresh_every)
        if self.observe_every < _LONGEST_OBSERVE:
            return replace(self, observe_every=2 * self.observe_every)
        if self.stride < _LONGEST_STRIDE:
            return replace(self, stride=2 * self.stride)
        return None


class Governor:
    """Measures what the monitor costs and backs off when the promise is broken.

    It adds up the wall time spent in the monitor's own code and the time of the whole loop around it. On a CPU that
    is the cost; on an accelerator, where kernels run later than the code that launches them, it is the host's share
    of it.

    Args:
        plan: to start with.
        max_overhead: the promise, as a share of the bare step.
        fixed: never change the plan.
        window: steps that a decision looks at.
    """

    def __init__(self, plan: Plan, *, max_overhead: float = 0.10, fixed: bool = False, window: int = 100) -> None:
        if not max_overhead > 0:
            raise SgoifError(f"max_overhead must be positive, got {max_overhead}.")
        self.plan, self.max_overhead, self.fixed, self.window = plan, max_overhead, fixed, window
        self._recent: deque[tuple[float, float]] = deque(maxlen=window)
        self._since_change = 0
        self._ours_s = self._total_s = 0.0
        self.changes: list[dict[str, Any]] = []

    def note(self, ours_s: float, total_s: float) -> None:
        """Add one step: seconds in the monitor, and in the loop altogether."""
        self._recent.append((ours_s, total_s))
        self._since_change += 1
        self._ours_s += ours_s
        self._total_s += total_s

    @property
    def overhead(self) -> float:
        """Share of the bare step that the monitor has cost so far, over the whole run."""
        bare = self._total_s - self._ours_s
        return self._ours_s / bare if bare > 0 else 0.0

    def recent_overhead(self) -> float:
        """The same over the last window."""
        if not self._recent:
            return 0.0
        ours = sum(o for o, _ in self._recent)
        bare = sum(t - o for o, t in self._recent)
        return ours / bare if bare > 0 else 0.0

    def decide(self, step: int) -> Plan:
        """Called at a refresh: the plan from here on."""
        measured = self.recent_overhead()
        if self.fixed or self._since_change < self.window or measured <= self.max_overhead:
            return self.plan
        cheaper = self.plan.cheaper()
        if cheaper is not None:
            self.changes.append({"step": step, "overhead": round(measured, 4), "plan": asdict(cheaper)})
            self.plan, self._since_change = cheaper, 0
        return self.plan

    def state_dict(self) -> dict[str, Any]:
        return {"plan": asdict(self.plan), "changes": list(self.changes), "times": (self._ours_s, self._total_s)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.plan = Plan(**{**state["plan"], "layers": tuple(state["plan"]["layers"])})
        self.changes, (self._ours_s, self._total_s) = list(state["changes"]), state["times"]
