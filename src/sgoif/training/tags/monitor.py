"""The monitor of tags: judges every tag of every example that is worth it, in the shell that surrounds a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sgoif.errors import SgoifError
from sgoif.gradients import LayerCapture
from sgoif.training.accounting import NO_ANCHORS_YET
from sgoif.training.ending import close_once
from sgoif.training.losses import LossSettings
from sgoif.training.noticing import IdNotices
from sgoif.training.portable import portable, restored
from sgoif.training.reading import Reading
from sgoif.training.schedule import Governor
from sgoif.training.shell import MonitorShell
from sgoif.training.sinks import ScoreSink
from sgoif.training.tags.engine import TagEngine
from sgoif.training.tags.ledger import TagLedger
from sgoif.training.tags.recorder import TagRecorder

__all__ = ["TagMonitor"]


class TagMonitor(MonitorShell):
    """Scores the tags of every example that passes through the training loop. Made by ``watch(task="multilabel")``."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        engine: TagEngine,
        *,
        forward: Callable[[Any], Tensor],
        loss: LossSettings,
        governor: Governor,
        recorder: TagRecorder,
        ledger: TagLedger,
        train_size: int,
        sink: ScoreSink | None = None,
        facts: Mapping[str, Any] | None = None,
        on_close: Callable[[TagMonitor], Any] | None = None,
    ) -> None:
        super().__init__(
            model,
            optimizer,
            engine.head,
            [engine.head],
            forward=forward,
            loss=loss,
            governor=governor,
            sink=sink,
            device=engine.holdout.device,
            facts=facts,
        )
        self.engine, self.recorder, self.ledger, self.sink = engine, recorder, ledger, sink
        self._on_close = close_once(on_close)
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
                self._counts.refuse(self._unsettled, NO_ANCHORS_YET)
            self._unsettled = 0
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
        self._settle()
        self.ledger.add(draw, self.engine, float(self.engine.confidence))
        self._decide_plan(step)

    def _settle(self) -> None:
        self.recorder.settle(self._lose, self._notices)

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
    def counters(self) -> dict[str, int]:
        """How much was done: steps, visits, refreshes, pairs that were not finite, faults. Waits for the device."""
        self.flush()
        return {
            "steps": self.step_count,
            "visits": self.recorder.num_visits,
            "refreshes": self.refreshes,
            "faults": sum(self.faults.values()),
            **self._counts.counters(),
            "pairs_not_finite": self.recorder.num_not_finite,
        }

    def close(self) -> Any:
        """Record what is waiting, write the run down and return it; None in a forked process, which has no run."""
        if self._leave_fork():
            return None
        self.is_on = False
        try:
            self._settle()
        except Exception as error:
            self._fault(error)
        self._notices.close(len(self.recorder.examples))
        self._close_counts(self.recorder.num_visits)
        try:
            return self._on_close(self)
        finally:
            self._cancel_ending()

    def weights(self, ids: Any) -> Tensor:
        """Weights are of examples with one class; an example with tags may have one right and one wrong."""
        raise SgoifError("weights() is there for one class per example, not for tags.")

    def snapshot(self, path: str | None = None) -> None:
        """A snapshot judges classes; of tags there is none yet, which is said and stops nothing."""
        self.fault_log.note(SgoifError("a snapshot of tags cannot be taken yet."), "no snapshot was made.")

    def state_dict(self) -> dict[str, Any]:
        """All that later scores depend on; save it beside the model's."""
        self._settle()
        state = {
            "engine": self.engine.state_dict(),
            "recorder": self.recorder.state_dict(),
            "ledger": self.ledger.state_dict(),
            "governor": self.governor.state_dict(),
            "step_count": self.step_count,
            "refreshes": self.refreshes,
            "faults": dict(self.faults),
            "counts": self._counts.state_dict(),
            "micro": self._micro,
            "autocast": self._autocast,
        }
        return {"tags": portable(state)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume: later scores are those that the saved run would have given."""
        state = restored(state["tags"]) if "tags" in state else state  # states from before are not packed
        self.engine.load_state_dict(state["engine"])
        self.recorder.load_state_dict(state["recorder"])
        self.ledger.load_state_dict(state["ledger"])
        self.governor.load_state_dict(state["governor"])
        self.step_count, self.refreshes = int(state["step_count"]), int(state["refreshes"])
        self.fault_log.load([state["faults"]])
        if "counts" in state:  # states from before have none
            self._counts.load([state["counts"]])
        else:
            self._counts.offered = self.recorder.num_visits
        self._ids.kind, self._steps_here = self.recorder.examples.kind, 0
        self._micro, self._autocast = int(state["micro"]), state["autocast"]
        resume = getattr(self.sink, "resume", None)
        if resume is not None:
            resume(self.step_count)
