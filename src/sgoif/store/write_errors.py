"""What could not be written: counted by cause, told once, and never raised into the training."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sgoif.errors import TakenOver

__all__ = ["WriteErrors"]

log = logging.getLogger(__name__)


class WriteErrors:
    """Faults and lost rows of one writer; two threads count here.

    >>> trouble = WriteErrors()
    >>> trouble.drop(blocks=1, rows=250)
    >>> trouble.since({"faults": {"OSError: full": 2}, "dropped_rows": 50})
    {'faults': {'OSError: full': 2}, 'dropped_rows': 300, 'dropped_blocks': 1}
    """

    def __init__(self) -> None:
        self.faults: dict[str, int] = {}
        self.dropped_blocks, self.dropped_rows = 0, 0
        self._lock = threading.RLock()  # a signal's handler may interrupt the thread that holds it
        self._has_warned = False

    def note(self, error: Exception) -> None:
        """Count an error; the first of all is logged."""
        self.count((f"{type(error).__name__}: {error}".splitlines() or [""])[0][:200])

    def count(self, cause: str, times: int = 1) -> None:
        """Count what somebody else met with."""
        with self._lock:
            self.faults[cause] = self.faults.get(cause, 0) + times
            is_first, self._has_warned = not self._has_warned, True
        if is_first:
            log.warning("trouble writing the run; the training goes on. %s", cause)

    def patiently(self, action: Callable[[], None], pauses: Sequence[float]) -> None:
        """Do something that may fail, again after each pause; the last failure is raised, those before it counted."""
        for pause in pauses:
            try:
                return action()
            except TakenOver:
                raise
            except Exception as error:
                self.note(error)
                time.sleep(pause)
        action()

    def drop(self, blocks: int, rows: int) -> None:
        """Count rows that are given up."""
        with self._lock:
            self.dropped_blocks += blocks
            self.dropped_rows += rows

    def since(self, earlier: Mapping[str, Any]) -> dict[str, Any]:
        """Add what earlier attempts had counted: a resumed run is still the run that lost those rows."""
        with self._lock:
            return {
                "faults": dict(Counter(earlier.get("faults") or {}) + Counter(self.faults)),
                "dropped_rows": int(earlier.get("dropped_rows") or 0) + self.dropped_rows,
                "dropped_blocks": int(earlier.get("dropped_blocks") or 0) + self.dropped_blocks,
            }
