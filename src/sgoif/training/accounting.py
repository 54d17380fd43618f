"""What became of every row that a training loop gave to ``monitor.step``, and the monitor's own errors, by cause."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["AFTER_SWITCHED_OFF", "NO_ANCHORS_YET", "OUTSIDE_CLASSES", "FaultLog", "VisitCounts", "cause_of"]

log = logging.getLogger(__name__)

OUTSIDE_CLASSES = "the label is no class of the model (ignore_index)"
NO_ANCHORS_YET = "no anchors yet: before the first look at the hold-out"
AFTER_SWITCHED_OFF = "the monitor had switched itself off"


@dataclass(slots=True)
class VisitCounts:
    """Rows by what became of them.

    Every row *offered* is recorded, waits to be recorded, was refused or was lost. Rows of steps that the plan does not
    score are not offered, nor are those of a step that the user's own exception ended.

    >>> counts = VisitCounts()
    >>> counts.offer(32)
    >>> counts.refuse(2, OUTSIDE_CLASSES)
    >>> counts.num_refused, counts.num_lost
    (2, 0)
    >>> resumed = VisitCounts()
    >>> other = VisitCounts(offered=8, lost={"OSError": 1})
    >>> resumed.load([counts.state_dict(), other.state_dict()])  # of two processes
    >>> resumed.offered, resumed.num_refused, resumed.num_lost
    (40, 2, 1)
    """

    offered: int = 0
    given_up: int = 0  # in bare steps, half of the pairs by which the cost is measured
    passed_over: int = 0  # in steps between two scored ones of the plan
    refused: dict[str, int] = field(default_factory=dict)  # that cannot be scored by their nature
    lost: dict[str, int] = field(default_factory=dict)  # to errors of our own

    @property
    def num_refused(self) -> int:
        return sum(self.refused.values())

    @property
    def num_lost(self) -> int:
        return sum(self.lost.values())

    def offer(self, rows: int) -> None:
        """Count rows of a step that is to be scored."""
        self.offered += rows

    def refuse(self, rows: int, cause: str) -> None:
        """Count rows that cannot be scored."""
        if rows:
            self.refused[cause] = self.refused.get(cause, 0) + rows

    def lose(self, rows: int, cause: str) -> None:
        """Count rows that an error of our own cost."""
        if rows:
            self.lost[cause] = self.lost.get(cause, 0) + rows

    def counters(self) -> dict[str, int]:
        """The sums, as counters of a run."""
        return {
            "visits_offered": self.offered,
            "visits_refused": self.num_refused,
            "visits_lost": self.num_lost,
            "visits_given_up": self.given_up,
            "visits_passed_over": self.passed_over,
        }

    def describe(self, recorded: int) -> str:
        """One line with the losses by cause."""
        parts = [f"{self.offered} visits offered, {recorded} recorded"]
        if self.passed_over:
            parts.append(f"{self.passed_over} in steps that the plan does not score")
        for what, causes in (("refused", self.refused), ("lost", self.lost)):
            if causes:
                named = "; ".join(f"{cause}: {count}" for cause, count in causes.items())
                parts.append(f"{sum(causes.values())} {what} ({named})")
        return ", ".join(parts)

    def state_dict(self) -> dict[str, Any]:
        """All counts."""
        return asdict(self)

    def load(self, states: Iterable[Mapping[str, Any]]) -> None:
        """Continue from saved counts, those of all processes that this one takes over from."""
        saved = list(states)
        for name in ("offered", "given_up", "passed_over"):
            setattr(self, name, sum(int(state[name]) for state in saved))
        for name in ("refused", "lost"):
            setattr(self, name, dict(sum((Counter(state[name]) for state in saved), Counter[str]())))


def cause_of(error: Exception) -> str:
    """An error in one line, by which it is counted."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


@dataclass(slots=True)
class FaultLog:
    """Errors by cause.

    >>> faults = FaultLog(max_consecutive=2)
    >>> faults.step_failed(ValueError("odd")), faults.step_failed(ValueError("odd"))
    (False, True)
    >>> faults.counts
    {'ValueError: odd': 2}
    """

    max_consecutive: int  # steps in a row that fail: with so many it is too much
    counts: dict[str, int] = field(default_factory=dict)
    in_a_row: int = 0

    def note(self, error: Exception, what: str) -> str:
        """Count an error, tell of it when its cause is new, and return the cause."""
        cause = cause_of(error)
        if cause not in self.counts:
            log.warning("%s %s", what, cause)
        self.counts[cause] = self.counts.get(cause, 0) + 1
        return cause

    def step_failed(self, error: Exception) -> bool:
        """Count a step that failed; True if that is one too many."""
        self.note(error, "a step could not be scored; the training goes on.")
        self.in_a_row += 1
        return self.in_a_row >= self.max_consecutive

    def load(self, saved: Iterable[Mapping[str, int]]) -> None:
        """Continue from saved counts, those of all processes that this one takes over from."""
        self.counts = dict(sum((Counter(counts) for counts in saved), Counter[str]()))
