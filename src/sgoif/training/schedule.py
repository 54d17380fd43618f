"""When to observe, refresh and score, and the governor that keeps the price of it under a promise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import mean
from typing import Any

from sgoif.errors import SgoifError
from sgoif.training.clock import PARTS, Clock, PairedProbe, PairedReading, StepKind, StepTimer

__all__ = ["MAX_OVERHEAD", "Governor", "Plan"]

MAX_OVERHEAD = 0.10  # share of the bare step, where nothing else is asked for
_OFTEN = 20  # steps between two refreshes, which need not be fewer at first
_LONGEST = {"refresh_every": 320, "observe_every": 40, "stride": 16}  # in the order in which they are made rarer
_KNOWN = 10  # steps after which the length of a step is known
_REPAY = 200  # steps within which what was spent above the promise is saved again
_ROOM = 0.8  # of what may be spent: a plan is made denser again only if it leaves some
_SHORT_STEP_S = 0.02  # below it the promise cannot be kept without giving up most scores
_PATIENCE = 120  # steps between two decisions, for the plan not to follow every whim of the clock


@dataclass(frozen=True, slots=True)
class Plan:
    """What the monitor does at which step. Changes only at refreshes, and is written into the run.

    >>> [step for step in range(300) if Plan().is_refresh(step)]
    [0, 20, 40, 60, 80, 100, 120, 140, 160, 200, 240, 280]
    >>> print(Plan(refresh_every=10, early_steps=0))
    plan: scores every step, observes curvature every 5 steps, refreshes from 256 hold-out examples every 10 steps
    """

    refresh_every: int = 40  # steps between two looks at the hold-out
    examples_per_refresh: int = 256  # more where steps are large, for sequences and tags
    layers: tuple[str, ...] = ()  # scored beside the head
    rank: int = 16  # of their projection
    stride: int = 1  # score every so many steps
    observe_every: int = 5  # steps between two updates of curvature
    early_steps: int = 160  # until here refreshes come twice as often: a model changes most at first

    def __post_init__(self) -> None:
        numbers = {key: value for key, value in asdict(self).items() if key != "layers"}
        least = {"early_steps": 0}
        wrong = {
            key: value for key, value in numbers.items() if not (isinstance(value, int) and value >= least.get(key, 1))
        }
        if wrong:
            raise SgoifError(f"a plan's numbers are whole and at least 1 (early_steps: 0), got {wrong}.")

    def __str__(self) -> str:
        scored = "every step" if self.stride == 1 else f"every {self.stride} steps"
        layers = f", the head and {', '.join(self.layers)} (rank {self.rank})" if self.layers else ""
        return (
            f"plan: scores {scored}{layers}, observes curvature every {self.observe_every} steps, refreshes from "
            f"{self.examples_per_refresh} hold-out examples every {self.refresh_every} steps{self._early}"
        )

    @property
    def _early(self) -> str:
        has_more = self.early_steps and self._early_every < self.refresh_every
        return f" (every {self._early_every} until step {self.early_steps})" if has_more else ""

    @property
    def _early_every(self) -> int:
        return max(min(self.refresh_every, _OFTEN), self.refresh_every // 2)

    def is_refresh(self, step: int) -> bool:
        return step % (self._early_every if step < self.early_steps else self.refresh_every) == 0

    def is_observe(self, step: int) -> bool:
        return step % self.observe_every == 0

    def is_scored(self, step: int) -> bool:
        return step % self.stride == 0

    def cheaper(self) -> Plan | None:
        """The next plan down: rarer refreshes first, then rarer curvature, then scoring only some steps."""
        for name, longest in _LONGEST.items():
            if getattr(self, name) < longest:
                return replace(self, **{name: 2 * getattr(self, name)})
            if name == "refresh_every" and self._early:
                return replace(self, early_steps=0)
        return None

    def price(self, step: int, scoring: float, curvature: float, refresh: float) -> float:
        """What a step costs on average from ``step`` on, by what scoring one, one observation and one refresh cost."""
        every = self._early_every if step < self.early_steps else self.refresh_every
        return scoring / self.stride + curvature / self.observe_every + refresh / every


class Governor:
    """Measures what the monitor costs, and chooses the plan by which the promise holds over the whole run.

    On a CPU it adds up the time spent in the monitor's own code and the time of the whole loop around it. When a
    refresh is due, it takes the densest plan that the promise allows, no denser than the first; what was spent above
    the promise so far is saved within the next 200 steps. Below 20 ms a step it makes the plan one step rarer in 120
    steps: a training that short has more to lose by scores that are missing. On an accelerator the clock sees only the
    host's share, so a :class:`PairedProbe` compares scored with bare steps now and then, and each reading that is too
    high makes the plan one step rarer.

    Args:
        plan: to start with.
        max_overhead: the promise, as a share of the bare step.
        fixed: never change the plan.
        window: least number of steps between two decisions.
        clock: what time is measured by.
        probe: compares steps in pairs; None believes the clock.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        max_overhead: float = MAX_OVERHEAD,
        fixed: bool = False,
        window: int = _PATIENCE,
        clock: Clock | None = None,
        probe: PairedProbe | None = None,
    ) -> None:
        if not max_overhead > 0:
            raise SgoifError(f"max_overhead must be positive, got {max_overhead}.")
        self.plan, self.max_overhead, self.fixed, self.window = plan, max_overhead, fixed, window
        self.probe, self.timer = probe, StepTimer(clock or Clock())
        self.first_plan = plan
        self._recent = _Tally()  # since the last decision
        self._unit = dict.fromkeys(PARTS, 0.0)  # seconds of one scored step, one observation, one refresh: the latest
        self._spent = dict.fromkeys(PARTS, 0.0)
        self._total_s = 0.0
        self._judged_readings = 0
        self._were_short = False
        self.changes: list[dict[str, Any]] = []

    def open_step(self, step: int) -> StepKind:
        """Say what is done in an optimiser step, before it begins."""
        is_scored = self.plan.is_scored(step)
        if self.probe is not None:
            is_bare = self.probe.open_step(step, may_be_bare=is_scored and not self.plan.is_refresh(step))
            self.timer.synchronous_parts = self.probe.synchronous_parts
            if is_bare:
                return StepKind.BARE
        return StepKind.SCORED if is_scored else StepKind.PASSED

    def close_step(self, step: int, kind: StepKind) -> None:
        """End an optimiser step, with what the timer saw of it."""
        parts, total_s = self.timer.take()
        if self.probe is not None:
            periods = dict.fromkeys(("curvature", "refresh"), self.plan.refresh_every)
            self.probe.close_step(step, kind, parts, periods, self.plan.stride)
        self.note(parts, sum(parts.values()) if total_s is None else total_s)  # nothing is known of the first loop

    def note(self, parts_s: Mapping[str, float], total_s: float) -> None:
        """Add one step: seconds in the parts of the monitor, and in the loop altogether."""
        self._recent.add(parts_s, total_s)
        for name, seconds in parts_s.items():
            self._spent[name] += seconds
        self._total_s += total_s

    @property
    def shares(self) -> dict[str, float]:
        """Measured share of the bare step by part, over the whole run."""
        if self.probe is not None and self.probe.readings:
            readings = self.probe.readings
            return {name: mean(reading.shares.get(name, 0.0) for reading in readings) for name in PARTS}
        bare = self._total_s - sum(self._spent.values())
        return {name: seconds / bare if bare > 0 else 0.0 for name, seconds in self._spent.items()}

    @property
    def overhead(self) -> float:
        """Share of the bare step that the monitor has cost so far, over the whole run."""
        return max(sum(self.shares.values()), 0.0)

    def recent_overhead(self) -> float:
        """The same since the last decision, or by the last reading."""
        if self.probe is not None:
            return self.probe.readings[-1].overhead if self.probe.readings else 0.0
        ours, bare = sum(self._recent.spent.values()), self._recent.bare_s
        return ours / bare if bare > 0 else 0.0

    @property
    def bare_s(self) -> float:
        """Seconds of a bare step, lately."""
        if self.probe is not None and self.probe.readings:
            return self.probe.readings[-1].bare_s
        return self._recent.bare_s / max(self._recent.steps, 1)

    @property
    def is_at_its_end(self) -> bool:
        """Whether the rarest plan was measured, so that nothing is left to give up."""
        return not self.fixed and self.plan.cheaper() is None and self.has_news

    def describe_cost(self, overhead: float, when: str) -> str:
        """Say that an overhead is far above the promise, and why that can be."""
        parts = ", ".join(f"{name} {100 * share:.0f}%" for name, share in self.shares.items())
        return (
            f"watching costs {100 * overhead:.0f}% of the bare step {when} ({parts}), above the limit of max_overhead="
            f"{self.max_overhead:g}. A bare step takes {1e3 * self.bare_s:.2g} ms, and scoring a step has a fixed "
            "cost, which weighs most for small models and small batches: use larger batches or a sparser plan "
            "(docs/howto/too-slow.md), or audit the trained model instead."
        )

    def describe_short_steps(self, overhead: float) -> str:
        """Say what watching adds to short steps, for which the promise is not kept, and what to do."""
        bare_ms = 1e3 * self.bare_s
        return (
            f"a step of the training loop takes {bare_ms:.2g} ms, and watching has added {bare_ms * overhead:.2g} ms "
            f"to each so far: {1 + overhead:.2f} times as long, more than max_overhead={self.max_overhead:g} allows. "
            "For steps below 20 ms that limit is not kept; if time matters, train without sgoif.watch and call "
            "sgoif.audit(model, ...) afterwards, which costs nothing while training (docs/howto/too-slow.md)."
        )

    def describe_stride(self, step: int) -> str:
        """Say that from a step on only some are scored, and what that costs."""
        return (
            f"watching adds {100 * self.overhead:.0f}% to a step so far, and max_overhead={self.max_overhead:g} allows "
            f"less: from step {step} on one step in {self.plan.stride} is scored. The visits of the others are counted "
            "as passed over, and their examples have fewer scores. A larger max_overhead scores more "
            "(docs/howto/too-slow.md)."
        )

    def measure(self) -> list[float]:
        """What a decision goes by: the recent overhead, one of each part and what was overspent, in bare steps.

        Of several processes the largest of each number counts.
        """
        open_parts = self.timer.parts
        recent = self._recent
        counts = {**recent.counts, "scoring": recent.counts["scoring"] / self.plan.stride}
        counts["curvature"] = recent.steps / self.plan.observe_every  # several are absorbed at a time
        for name, seconds in recent.spent.items():
            count = counts[name]
            if count:
                self._unit[name] = (seconds + open_parts.get(name, 0.0)) / count
        bare_s = self.bare_s or float("inf")
        spent = sum(self._spent.values()) + sum(open_parts.values())
        debt = spent - self.max_overhead * (self._total_s - sum(self._spent.values()))
        return [self.recent_overhead(), *(self._unit[name] / bare_s for name in PARTS), debt / bare_s]

    def decide(self, step: int, measured: Sequence[float] | None = None) -> Plan:
        """Called when a refresh is due: the plan from here on.

        Args:
            step: the step.
            measured: from :meth:`measure`, where it is not this process's own that counts.
        """
        overhead, *prices, debt = self.measure() if measured is None else measured
        if self.fixed or not self.has_news:
            return self.plan
        if self.probe is not None or self.has_short_steps:
            found = self._step_down(step, overhead)
        else:
            found = self._fit(step, prices, debt)
        if found != self.plan:
            self.changes.append({"step": step, "overhead": round(overhead, 4), "plan": asdict(found)})
            self._judged_readings = len(self.probe.readings) if self.probe is not None else 0
        self.plan, self._recent = found, _Tally()
        return found

    def _step_down(self, step: int, overhead: float) -> Plan:
        is_early = step < self.plan.early_steps + _PATIENCE  # when refreshes come twice as often
        is_over = overhead > self.max_overhead * (2 if is_early else 1)
        return (self.plan.cheaper() or self.plan) if is_over else self.plan

    def _fit(self, step: int, prices: Sequence[float], debt: float) -> Plan:
        """The densest plan, from the first one down, by which the debt is paid back in time."""
        share = min(self.max_overhead, self.max_overhead - debt / _REPAY)
        found, is_denser = self.first_plan, True
        while True:
            is_denser = is_denser and found != self.plan
            if found.price(step, *prices) <= share * (_ROOM if is_denser else 1.0):
                return found
            cheaper = found.cheaper()
            if cheaper is None:
                return found
            found = cheaper

    @property
    def has_news(self) -> bool:
        """Whether enough was measured since the last decision."""
        if self.probe is not None:
            return len(self.probe.readings) > self._judged_readings
        return self._recent.steps >= self.window

    @property
    def has_short_steps(self) -> bool:
        """Whether steps are so short that the promise is not kept; known when some were measured.

        Once they were, they are: a machine that is busy later makes them longer, and must not cost the scores.
        """
        self._were_short |= self._recent.steps >= _KNOWN and self.bare_s < _SHORT_STEP_S
        return self._were_short

    def state_dict(self) -> dict[str, Any]:
        times = {"spent": dict(self._spent), "total": self._total_s}
        probe = self.probe
        paired = None if probe is None else {"next": probe.next_window, "readings": [asdict(r) for r in probe.readings]}
        known = {"changes": list(self.changes), "were_short": self._were_short}
        return {"plan": asdict(self.plan), **known, "times": times, "paired": paired}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.plan = Plan(**{**state["plan"], "layers": tuple(state["plan"]["layers"])})
        self.changes = list(state["changes"])
        self._were_short = bool(state["were_short"])
        self._spent, self._total_s = dict(state["times"]["spent"]), state["times"]["total"]
        if self.probe is not None and state["paired"] is not None:
            self.probe.next_window = state["paired"]["next"]
            self.probe.readings = [PairedReading(**reading) for reading in state["paired"]["readings"]]
            self._judged_readings = len(self.probe.readings)


class _Tally:
    """What some steps took."""

    def __init__(self) -> None:
        self.spent, self.counts = dict.fromkeys(PARTS, 0.0), dict.fromkeys(PARTS, 0)
        self.steps, self.total_s = 0, 0.0

    @property
    def bare_s(self) -> float:
        return self.total_s - sum(self.spent.values())

    def add(self, parts_s: Mapping[str, float], total_s: float) -> None:
        self.steps += 1
        self.total_s += total_s
        for name, seconds in parts_s.items():
            self.spent[name] += seconds
            self.counts[name] += 1
