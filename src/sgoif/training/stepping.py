"""The context around one micro-step of the user's loop. Our own trouble is caught; the user's own passes through."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from torch import Tensor

from sgoif.errors import CaptureError, SgoifError

if TYPE_CHECKING:
    from sgoif.training.shell import MonitorShell

__all__ = ["Step"]


class Step:
    """The context of one micro-step. Its own trouble is caught; the user's exceptions pass through untouched."""

    __slots__ = ("_accumulate", "_grad_factor", "_ids", "_is_last", "_is_open", "_monitor", "_targets", "_weights")

    def __init__(
        self,
        monitor: MonitorShell,
        ids: Any,
        targets: Tensor,
        grad_factor: float | Tensor | None,
        accumulate: float | Tensor | None,
        is_last: bool | None,
        weights: Tensor | None,
    ) -> None:
        self._monitor, self._ids, self._targets, self._weights = monitor, ids, targets, weights
        self._grad_factor, self._accumulate, self._is_last = grad_factor, accumulate, is_last
        self._is_open = False

    def __enter__(self) -> Step:
        monitor = self._monitor
        with monitor.governor.timer.part("scoring"):
            try:
                self._is_open = monitor._enter(self._targets, self._grad_factor, self._accumulate, self._weights)
            except Exception as error:
                monitor._fault(error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        monitor, step = self._monitor, self._monitor.step_count
        if self._is_open:
            monitor._capture.__exit__(kind, error, trace)
        if not monitor.is_on or kind is not None:
            return
        with monitor.governor.timer.part("scoring"):
            is_sound = True
            if self._is_open:
                is_sound = self._guarded(lambda: monitor._leave(self._ids, self._targets))
            is_sound = monitor.is_on and self._guarded(lambda: monitor._finish_step(self._is_last)) and is_sound
            if is_sound:
                monitor.fault_log.in_a_row = 0
        if monitor.step_count > step:
            monitor.governor.close_step(step, monitor._kind)

    def _guarded(self, action: Callable[[], None]) -> bool:
        """Run a part of our work; False where it failed, which the training must not feel."""
        monitor = self._monitor
        try:
            with monitor._precision(None):  # the user's autocast may still be open around us
                action()
        except SgoifError as problem:
            if not monitor._checked or (isinstance(problem, CaptureError) and monitor.step_count <= 1):
                raise  # the first step: a mistake in the set-up, said before anything is written
            monitor._fault(problem)
            return False
        except Exception as problem:
            monitor._fault(problem)
            return False
        return True
