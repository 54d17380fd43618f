"""The monitor's own trouble: counted by cause, told once, and when it is too much, the reason to stop."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

__all__ = ["FaultLog", "cause_of"]

log = logging.getLogger(__name__)


def cause_of(error: Exception) -> str:
    """An error in one line, by which it is counted."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


@dataclass(slots=True)
class FaultLog:
    """Errors by cause.

    Args:
        borne: steps in a row that may fail; one more is too many.

    >>> faults = FaultLog(borne=2)
    >>> faults.step_failed(ValueError("odd")), faults.step_failed(ValueError("odd"))
    (False, True)
    >>> faults.counts
    {'ValueError: odd': 2}
    """

    borne: int
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
        return self.in_a_row >= self.borne

    def load(self, saved: Iterable[Mapping[str, int]]) -> None:
        """Continue from saved counts, those of all processes that this one takes over from."""
        self.counts = dict(sum((Counter(counts) for counts in saved), Counter[str]()))
