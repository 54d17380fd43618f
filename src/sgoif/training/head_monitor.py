"""The monitor of models with a head: outputs ``[B, C]`` of one layer, at which the declared loss is checked."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sgoif.errors import HeadError
from sgoif.gradients import Layer, LayerCapture
from sgoif.gradients.models import compiled_modules
from sgoif.training.base import BaseMonitor, WatchedLoop
from sgoif.training.losses import logits_of
from sgoif.training.sinks import ScoreSink
from sgoif.training.step_capture import StepCapture
from sgoif.training.targets import check_targets, refuse_swapped

__all__ = ["HeadMonitor"]


class HeadMonitor(BaseMonitor[StepCapture]):
    """What monitors of classes and of tags have in common.

    Args:
        loop: that is watched.
        head: the layer that gives the outputs.
        layers: all scored layers, the head among them.
        sink: where the run is written to; None for nowhere.
        device: where the hold-out is.
        on_close: makes the run of what was recorded.
    """

    def __init__(
        self,
        loop: WatchedLoop,
        head: Layer,
        layers: Sequence[Layer],
        *,
        sink: ScoreSink | None,
        device: torch.device,
        on_close: Callable[[Any], Any] | None = None,
    ) -> None:
        compiled = compiled_modules(loop.model, layers, is_whole=loop.is_compiled)
        hooks = StepCapture(loop.model, head, layers, loop.loss, device, compiled=compiled)
        super().__init__(loop, hooks, layers, sink=sink, device=device, on_close=on_close)
        self._head = head

    @abstractmethod
    def _score(self, calls: list[LayerCapture], head: LayerCapture, outputs: Tensor, ids: Any, targets: Tensor) -> None:
        """Judge one micro-batch after its backward pass. Calls :meth:`_check_once` when the targets could be read."""

    def _check_targets(self, targets: Any) -> None:
        check_targets(targets)
        if len(targets) == 1:
            self._seen.warn_of_one(self.step_count)

    def _leave(self, ids: Any, targets: Any) -> None:
        calls, head = self._seen.take()
        if self._may_raise:
            refuse_swapped(ids, targets, self._head.shape.outputs)
        kept = self._read_ids(ids, len(targets))
        self._score(calls, head, logits_of(head), kept, targets)

    def _check_once(self, head: LayerCapture, outputs: Tensor, targets: Tensor) -> None:
        """On the first step: is the gradient at the head what the declared loss says?"""
        if self._seen.is_checked:
            return
        self._seen.note_precision(head)
        try:
            self._seen.is_checked = self._seen.check_loss(head, outputs, targets)
        except HeadError as error:
            if not self._may_raise:  # too late to raise, and nothing that is scored could be trusted
                self._switch_off(error)
            raise
