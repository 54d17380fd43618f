"""One micro-step of a training that is watched: what a loop surrounds its forward and backward pass with."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from torch import Tensor

from sgoif.errors import CaptureError, SgoifError
from sgoif.training.accounting import AFTER_SWITCHED_OFF, cause_of
from sgoif.training.clock import StepKind

if TYPE_CHECKING:
    from sgoif.training.base import BaseMonitor

__all__ = ["Step"]


class Step:
    """The context of one micro-step. Its own trouble is caught; the user's exceptions pass through untouched."""

    def __init__(
        self,
        monitor: BaseMonitor[Any],
        ids: Any,
        targets: Any,
        grad_factor: float | Tensor | None,
        accumulate: float | Tensor | None,
        is_last: bool | None,
        weights: Tensor | None,
    ) -> None:
        self._monitor, self._ids, self._targets, self._weights = monitor, ids, targets, weights
        self._grad_factor, self._accumulate, self._is_last = grad_factor, accumulate, is_last
        self._is_open = self._was_open = False
        self._is_first = monitor._steps_here == 0
        self._problem: Exception | None = None

    def __enter__(self) -> Step:
        monitor = self._monitor
        with monitor.governor.timer.part("scoring"):
            try:
                self._is_open = monitor._enter(self._targets, self._grad_factor, self._accumulate, self._weights)
            except Exception as error:
                if isinstance(error, SgoifError) and monitor._may_raise:
                    raise
                self._problem = error
        self._was_open = self._is_open
        return self

    def __del__(self) -> None:
        """A step that was entered and never left takes its hooks off the model, so that the next one can have them."""
        self._close_capture(None, None, None)

    def _close_capture(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_open:
            self._is_open = False
            self._monitor._seen.close(kind, error, trace)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        monitor, step = self._monitor, self._monitor.step_count
        self._close_capture(kind, error, trace)
        if kind is not None:  # the user's own trouble: the step was none
            return
        if not monitor.is_on:
            self._count_missed()
            return
        with monitor.governor.timer.part("scoring"):
            is_sound = self._judge()
            is_sound = monitor.is_on and self._guarded(lambda: monitor._finish_step(self._is_last)) and is_sound
            if is_sound and monitor._is_sound:
                monitor.fault_log.in_a_row = 0
        if monitor.step_count > step:
            monitor.governor.close_step(step, monitor._kind)

    @property
    def _num_rows(self) -> int:
        try:
            return len(self._targets)
        except TypeError:  # a number, or a tensor of one
            return 1

    def _judge(self) -> bool:
        """Judge the rows, and count what becomes of them; True if nothing went wrong."""
        monitor = self._monitor
        if self._problem is None and not self._was_open:
            is_bare = monitor._kind is StepKind.BARE
            monitor._counts.given_up += self._num_rows if is_bare else 0
            monitor._counts.passed_over += 0 if is_bare else self._num_rows
            return True
        monitor._counts.offer(self._num_rows)
        monitor._unaccounted = self._num_rows
        if self._problem is not None:
            monitor._step_failed(self._problem)
            return False
        return self._guarded(lambda: monitor._leave(self._ids, self._targets)) and not monitor._unaccounted

    def _count_missed(self) -> None:
        """Count the rows that go by after the monitor switched itself off, which is not what the user asked for."""
        monitor = self._monitor
        if monitor._is_switched_off:
            monitor._counts.offer(self._num_rows)
            monitor._counts.lose(self._num_rows, AFTER_SWITCHED_OFF)

    def _guarded(self, action: Callable[[], None]) -> bool:
        """Run a part of our work; False where it failed, which the training must not feel."""
        monitor = self._monitor
        may_raise = monitor._may_raise
        try:
            with monitor._seen.precision(None):  # the user's autocast may still be open around us
                action()
        except Exception as problem:
            is_set_up = may_raise or (isinstance(problem, CaptureError) and self._is_first)
            if isinstance(problem, SgoifError) and is_set_up:  # the first step: a mistake in the set-up
                monitor._counts.refuse(monitor._unaccounted, cause_of(problem))
                monitor._unaccounted = 0
                raise
            monitor._step_failed(problem)
            return False
        return True
