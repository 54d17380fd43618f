"""How far a long command is: a bar per stage on a terminal, a line a minute where there is none."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sgoif.cli.output import count, stderr_console

if TYPE_CHECKING:
    from rich.progress import TaskID

__all__ = ["Report", "progress_bars"]

Report = Callable[[str, int, int], None]  # stage, how much of it is done, how much there is

_EVERY_S = 60.0  # between lines where there is no terminal


@contextmanager
def progress_bars() -> Iterator[Report]:
    """One bar per stage on standard error, with the time that is left; plain lines where that is no terminal."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    screen = stderr_console()
    if not screen.is_terminal:
        lines = ProgressLines()
        try:
            yield lines.report
        finally:
            lines.close()
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left", style="dim"),
        TimeRemainingColumn(),
    )
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=screen) as bars:

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=max(total, 1))
            bars.update(tasks[stage], completed=done, total=max(total, 1))

        yield report


class ProgressLines:
    """A line on standard error when a stage begins and ends, and every minute in between.

    A thread writes the lines in between, because a stage may work for long without reporting.
    """

    def __init__(self, every_s: float = _EVERY_S) -> None:
        self._every_s = every_s
        self._start = time.monotonic()
        self._printed_at = self._start
        self._begun: set[str] = set()
        self._last: tuple[str, int, int] | None = None
        self._lock = threading.Lock()
        self._is_closed = threading.Event()
        self._thread: threading.Thread | None = None

    def report(self, stage: str, done: int, total: int) -> None:
        """Take what is done; print it where the stage begins or ends."""
        with self._lock:
            self._last = (stage, done, total)
            if stage not in self._begun or done >= total:
                self._begun.add(stage)
                self._print()
        if self._thread is None:
            self._thread = threading.Thread(target=self._repeat, name="sgoif-progress", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop the thread."""
        self._is_closed.set()
        if self._thread is not None:
            self._thread.join()

    def _repeat(self) -> None:
        wait = self._every_s
        while not self._is_closed.wait(wait):
            with self._lock:
                wait = self._printed_at + self._every_s - time.monotonic()
                if wait <= 0:
                    self._print()
                    wait = self._every_s

    def _print(self) -> None:
        if self._last is None:
            return
        stage, done, total = self._last
        self._printed_at = time.monotonic()
        seconds = self._printed_at - self._start
        print(f"{stage}: {count(done)} of {count(total)}, {seconds:.0f} s", file=sys.stderr, flush=True)
