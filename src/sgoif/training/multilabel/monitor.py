"""The monitor of tags: judges every tag of every example that is worth it, in the base that surrounds a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sgoif.errors import SgoifError
from sgoif.evidence import IdIndex
from sgoif.gradients import LayerCapture
from sgoif.training.accounting import NO_ANCHORS_YET
from sgoif.training.base import Reading, WatchedLoop
from sgoif.training.head_monitor import HeadMonitor
from sgoif.training.multilabel.engine import MultilabelEngine
from sgoif.training.multilabel.ledger import MultilabelLedger
from sgoif.training.multilabel.recorder import MultilabelRecorder
from sgoif.training.sinks import ScoreSink
from sgoif.training.step_ids import IdNotices

__all__ = ["MultilabelMonitor"]


class MultilabelMonitor(HeadMonitor):
    """Scores the tags of every example that passes through the training loop. Made by ``watch(task="multilabel")``."""

    def __init__(
        self,
        loop: WatchedLoop,
        engine: MultilabelEngine,
        *,
        recorder: MultilabelRecorder,
        ledger: MultilabelLedger,
        train_size: int,
        sink: ScoreSink | None = None,
        on_close: Callable[[MultilabelMonitor], Any] | None = None,
    ) -> None:
        head, device = engine.head, engine.holdout.device
        super().__init__(loop, head, [head], sink=sink, device=device, on_close=on_close)
        self.engine, self.recorder, self.ledger, self.sink = engine, recorder, ledger, sink
        self._train_size, self._visits_since = train_size, 0  # the last refresh
        given = engine.holdout.examples.given_ids
        self._notices = IdNotices(train_size, self._warn_once, None if given is None else sorted(given))

    def _score(self, calls: list[LayerCapture], head: LayerCapture, outputs: Tensor, ids: Any, targets: Tensor) -> None:
        """Score a micro-batch and note its curvature."""
        if targets.shape != outputs.shape:
            raise SgoifError(
                f"targets have shape {tuple(targets.shape)}, the model's outputs {tuple(outputs.shape)}; tags are "
                "given as [examples, tags] of 0 and 1, NaN or -1 where unknown."
            )
        self._check_once(head, outputs, targets)
        self._visits_since += len(targets)
        with torch.no_grad():
            features = self.engine.features_of(head)
            if self.engine.is_ready:
                packed = self.engine.score(features, outputs, targets)
                if ids is not None:
                    self.recorder.add(ids, packed, targets, self.engine.confidence)
            else:
                self._counts.refuse(self._unaccounted, NO_ANCHORS_YET)
            self._unaccounted = 0
            if self.governor.plan.is_observe(self.step_count) or not self.engine.is_ready:
                with self.governor.timer.part("curvature"):
                    self.engine.measure(features, outputs)

    def _update(self, step: int) -> None:
        """Curvature, and what depends on the hold-out when a refresh is due."""
        with self.governor.timer.part("curvature"):
            self.engine.absorb()
        if self.governor.plan.is_refresh(step):
            with self.governor.timer.part("refresh"):
                self._refresh(step)

    def _refresh(self, step: int) -> None:
        self.refreshes += 1
        # As often as a training example is visited, a hold-out example is looked at: means of fewer looks are more
        # extreme, and with one look for two visits half of the missing tags were expected (development set).
        even = math.ceil(len(self.engine.holdout) * self._visits_since / max(self._train_size, 1))
        self.engine.per_refresh, self._visits_since = max(self.governor.plan.examples_per_refresh, even), 0
        draw = self.engine.refresh(self.model, self._anchor_capture, self._forward_as_trained)
        self._flush()
        self.ledger.add(draw, self.engine, float(self.engine.confidence))
        self._decide_plan(step)

    def _flush(self) -> None:
        self.recorder.flush(self._lose, self._notices)

    def _lose(self, rows: int, error: Exception) -> None:
        cause = self.fault_log.note(error, "visits could not be recorded; the training goes on.")
        counted = self._counts.refuse if isinstance(error, SgoifError) else self._counts.lose
        counted(rows, cause)

    @property
    def reading(self) -> Reading:
        """How the monitor is doing. Directions are solved, so there is no residual."""
        return Reading(
            step=self.step_count,
            residual=0.0,
            confidence=float(self.engine.confidence),
            tau=float("nan"),
            overhead=self.governor.overhead,
            judged=1.0 if self.engine.is_ready else 0.0,
        )

    @property
    def _num_recorded(self) -> int:
        """Visits that were recorded."""
        return self.recorder.num_visits

    @property
    def _index(self) -> IdIndex:
        return self.recorder.examples

    def _task_counters(self) -> dict[str, int]:
        return {"pairs_not_finite": self.recorder.num_not_finite}

    def _end(self, was_on: bool) -> None:
        self._notices.close(len(self.recorder.examples))

    def weights(self, ids: Any) -> Tensor:
        """Weights are of examples with one class; an example with tags may have one right and one wrong."""
        raise SgoifError("weights() is there for one class per example, not for tags.")

    def snapshot(self, path: str | None = None) -> None:
        """A snapshot judges classes; of tags there is none yet, which is said and stops nothing."""
        self.fault_log.note(SgoifError("a snapshot of tags cannot be taken yet."), "no snapshot was made.")

    def _task_state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        shared = {
            "engine": self.engine.state_dict(),
            "recorder": self.recorder.state_dict(),
            "ledger": self.ledger.state_dict(),
        }
        return shared, {}

    def _load_task_state(self, shared: Mapping[str, Any], owned: Sequence[Mapping[str, Any]]) -> None:
        self.engine.load_state_dict(shared["engine"])
        self.recorder.load_state_dict(shared["recorder"])
        self.ledger.load_state_dict(shared["ledger"])
