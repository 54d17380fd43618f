"""What is done for an open monitor when its process ends before ``close()``.

By itself, by an exception or ``sys.exit``: visits that wait are recorded and all that was recorded is written, within
seconds. So it is at SIGTERM, where that has its default handler and the training runs in the main thread: the handler
writes what there is and then lets the signal end the process as it would have. A handler of the user's own is left
alone, whenever it was set. A forked copy of the process does nothing of this.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

from sgoif.training.sinks import ScoreSink

__all__ = ["Ending", "close_once", "defer_sigterm"]

log = logging.getLogger(__name__)

_EXIT_S = 10.0
_SIGTERM_S = 5.0  # whoever sends it often sends SIGKILL after 10 s

_open: list[Ending] = []
_depth = 0  # of `defer_sigterm`
_is_due = False  # a SIGTERM came meanwhile
_is_told_of_forks = False
_forking = threading.local()  # what a thread that forks masked before


class Ending:
    """Writes the visits of one monitor when the process ends, or when the monitor is forgotten unclosed.

    Args:
        monitor: kept alive by nobody here.
        flush: records visits that wait; None where that takes other processes.
        sink: where the run is written to.
    """

    def __init__(self, monitor: object, flush: Callable[[], None] | None, sink: ScoreSink) -> None:
        self._flush, self._sink, self._pid = flush, sink, os.getpid()
        self._forgotten = weakref.finalize(monitor, self._forget)
        self._forgotten.atexit = False
        atexit.register(self._at_exit)
        _open.append(self)
        _install()

    def cancel(self) -> None:
        """The monitor was closed."""
        self._forgotten.detach()
        atexit.unregister(self._at_exit)
        if self in _open:
            _open.remove(self)
        if not _open:
            _uninstall()

    def run(self, timeout_s: float) -> None:
        """Write what there is. Never raises."""
        if os.getpid() != self._pid:
            return
        for write in (self._flush, partial(self._sink.end, timeout_s)):
            try:
                if write is not None:
                    write()
            except Exception as error:
                log.warning("visits that waited could not be recorded: %s: %s", type(error).__name__, error)

    def _at_exit(self) -> None:
        self._warn("the process ends")
        self.run(_EXIT_S)

    def _forget(self) -> None:
        self._warn("the monitor is no longer referenced, and ends")
        self.run(0.0)  # the sink itself waits at exit
        self.cancel()

    def _warn(self, what: str) -> None:
        if os.getpid() == self._pid:
            said = "`sgoif info %s` says what was written."
            if self._sink.keep_visits == "none":  # or a multi-label run, whose visits are never kept
                said = "no visits are kept in %s, so what was scored is lost."
            log.warning(f"{what} without monitor.close(); {said}", self._sink.url)


@contextlib.contextmanager
def defer_sigterm() -> Iterator[None]:
    """Put a SIGTERM off until visits that are on their way are recorded."""
    global _depth, _is_due
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        if _depth == 0 and _is_due:
            _is_due = False
            os.kill(os.getpid(), signal.SIGTERM)  # now for good


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    global _is_due
    if _depth:
        _is_due = True
        return
    until = time.monotonic() + _SIGTERM_S
    for ending in list(_open):
        ending.run(max(0.0, until - time.monotonic()))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def _install() -> None:
    global _is_told_of_forks
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return
    signal.signal(signal.SIGTERM, _on_sigterm)
    if not _is_told_of_forks and hasattr(os, "register_at_fork"):
        _is_told_of_forks = True
        os.register_at_fork(before=_before_fork, after_in_parent=_unmask, after_in_child=_after_in_child)


def _uninstall() -> None:
    if signal.getsignal(signal.SIGTERM) is _on_sigterm:
        with contextlib.suppress(ValueError):  # not in the main thread: it stays, and does no harm
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _before_fork() -> None:
    """A new process forgets the signals that arrive while it is made: with a handler of ours they must wait."""
    if signal.getsignal(signal.SIGTERM) is _on_sigterm:
        _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])


def _after_in_child() -> None:
    _open.clear()
    _uninstall()
    _unmask()


def _unmask() -> None:
    mask, _forking.mask = getattr(_forking, "mask", None), None
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def close_once(on_close: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    """Give the run of the first call to every later one: written twice, a run would hold every example twice."""
    runs: list[Any] = []

    def close(monitor: Any) -> Any:
        if not runs:
            runs.append(None if on_close is None else on_close(monitor))
        return runs[0]

    return close
