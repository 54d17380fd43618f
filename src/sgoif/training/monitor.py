"""The monitor of classes: judges every example by anchors, one per class, in the base that surrounds a step.

Processes meet in :meth:`Monitor._update` and nowhere else while the training goes on; docs/distributed.md says what is
exchanged there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any
from weakref import WeakMethod

import torch
from torch import Tensor

from sgoif.errors import CaptureError, HeadError, SgoifError
from sgoif.evidence import IdIndex, as_ids
from sgoif.gradients import LayerCapture
from sgoif.gradients.contractions import widen
from sgoif.influence import HoldOut
from sgoif.training.accounting import OUTSIDE_CLASSES
from sgoif.training.anchor_health import anchor_rows
from sgoif.training.base import Reading, WatchedLoop
from sgoif.training.engine import Engine
from sgoif.training.head_monitor import HeadMonitor
from sgoif.training.holdout_scores import HoldoutScores
from sgoif.training.losses import HoldoutPass, holdout_losses
from sgoif.training.recorder import Recorder
from sgoif.training.step_ids import IdNotices
from sgoif.training.targets import GivenLabels, read_targets, without_classes
from sgoif.training.visit_buffer import VisitBuffer
from sgoif.training.weights import Weights, WeightTable

__all__ = ["Monitor", "Reading"]

log = logging.getLogger(__name__)


class Monitor(HeadMonitor):
    """Scores every example that passes through the training loop. Made by :func:`sgoif.watch`."""

    _uses_dataset = True

    def __init__(
        self,
        loop: WatchedLoop,
        engine: Engine,
        *,
        recorder: Recorder,
        holdout_scores: HoldoutScores | None = None,
        on_close: Callable[[Monitor], Any] | None = None,
        on_snapshot: Callable[[Monitor, HoldoutPass, str | None], Any] | None = None,
        on_weights: Callable[[Monitor, Any], Weights | None] | None = None,
    ) -> None:
        head, device = engine.head, engine.holdout.device
        super().__init__(loop, head, engine.layers, sink=recorder.sink, device=device, on_close=on_close)
        self.engine, self.recorder, self.holdout_scores = engine, recorder, holdout_scores
        self._on_snapshot, self._on_weights = on_snapshot, on_weights
        self._weights = WeightTable(engine.gate.planned_steps or 0)
        self._visits = VisitBuffer(engine, recorder, self.peers, self._counts, self.fault_log.note)
        self._visits.notices = self._notices(recorder.train_size, engine.holdout)
        self._flush_at_end = self._visits.flush if self.peers.is_alone else None
        self._last_epoch = 0
        self._has_failed = False  # the last time that visits were scored
        self._anchor_losses = loop.loss.losses

    # The step.

    def _score(self, calls: list[LayerCapture], head: LayerCapture, outputs: Tensor, ids: Any, targets: Tensor) -> None:
        """Queue a micro-batch to be scored, and note its curvature."""
        given = self._seen.given or read_targets(
            targets, outputs, label_smoothing=self.loss.label_smoothing, meaning=self.loss.soft_targets
        )
        if not self._seen.is_checked:
            self._anchor_losses = holdout_losses(self.loss, targets)
            self._check_once(head, outputs, targets)
        if not self._weights.is_tried:
            self._check_weighted(head, outputs, targets)
        with torch.no_grad():
            self._queue(calls, outputs, ids, given, targets)
            self._unaccounted = 0
            self.engine.note_gradient(calls)
            if self.governor.plan.is_observe(self.step_count) or not self.engine.tracker.is_ready:
                self.engine.measure(_thinned(calls, given.thinning))

    def _check_weighted(self, head: LayerCapture, outputs: Tensor, targets: Tensor) -> None:
        """On the first step with new weights: are they in the loss as passed to :meth:`step`?"""
        try:
            self._weights.is_tried = self._seen.check_loss(head, outputs, targets)
        except HeadError as error:
            raise HeadError(
                "monitor.weights() has changed, and the gradients at the head do not agree. Weigh the loss as "
                "(w * losses).sum() / w.sum(), with the same w in monitor.step(..., weights=w)."
            ) from error

    def _queue(self, calls: list[LayerCapture], outputs: Tensor, ids: Any, given: GivenLabels, targets: Tensor) -> None:
        if ids is None:
            self._visits.add_none(self.step_count, self._micro)
            return
        ticket = self.engine.queue(calls, outputs, given.labels, mixed=given.mixed, is_class=given.is_class)
        finish = None
        if given.soft is not None:
            finish = partial(without_classes, given=given, targets=targets.clone(), outputs=widen(outputs).clone())
        self._visits.add(ids, given, self.step_count, self._micro, ticket, finish)

    def _settle(self) -> None:
        """Have scored what is queued. What fails costs the visits of its steps, not the rest of this one."""
        errors = self._visits.settle()
        self._has_failed = bool(errors)
        for error in errors:
            if isinstance(error, SgoifError) and self._may_raise:
                raise error
            if self.is_on:
                self._fault(error)

    @property
    def _is_sound(self) -> bool:
        return self._visits.is_settled and not self._has_failed

    def _update(self, step: int) -> None:
        """Curvature, anchors when due, one product per direction."""
        is_refresh = self.governor.plan.is_refresh(step)
        if is_refresh:
            with self.governor.timer.part("scoring"):  # within that of the whole step, for the governor to see it
                self._settle()
            if not self.is_on:  # then the others wait for this one no longer
                return
        is_first = not self.engine.tracker.is_ready
        if is_first or is_refresh or self.engine.gate.needs_gradient:
            self.peers.check_in_sync(step, self.engine.observed_steps, is_refresh)
        if is_refresh and self.refreshes:
            self._decide_plan(step)
            is_refresh = self.governor.plan.is_refresh(step)
        if is_first or is_refresh:
            with self.governor.timer.part("curvature"):
                self.engine.absorb()
        if is_refresh:
            with self.governor.timer.part("refresh"):
                self._refresh(step)
        group = self.optimizer.param_groups[0] if self.optimizer is not None else {}
        self.engine.advance(float(group.get("lr", 0.0)), float(group.get("weight_decay", 0.0) or 0.0))

    def _refresh(self, step: int) -> None:
        self.refreshes += 1
        self._flush()  # first: whatever becomes of the refresh, visits do not wait for another
        try:
            draw = self.engine.refresh(self.model, self._anchor_capture, self._forward_as_trained, self._anchor_losses)
        except RuntimeError as error:
            if "use_reentrant" not in str(error):
                raise
            raise CaptureError(
                "a scored layer lies before or inside a reentrant activation checkpoint, through which hold-out "
                "gradients cannot be taken. Checkpoint with use_reentrant=False, or score the head only "
                "(layers='auto')."
            ) from error
        if not len(draw.positions):
            return
        if self.recorder.sink is not None and self.peers.rank == 0:
            rows = anchor_rows(self.engine, draw, step)
            if rows:
                self.recorder.sink.write_table("anchors", rows)
        if self.holdout_scores is not None and self.holdout_scores.add(draw, self.engine, step):
            self.engine.anchors.trust = self.peers.broadcast(self.engine.anchors.trust)

    # Bookkeeping.

    def _flush(self) -> None:
        """Bring the waiting visits to the host, in one transfer, and record them. The one place that waits."""
        self._visits.flush()
        self._flushed_at = time.monotonic()
        self._log_epoch()

    def _log_epoch(self) -> None:
        epoch = self.recorder.num_visits // max(self.recorder.train_size, 1)
        if epoch > self._last_epoch and self.engine.reading is not None:
            self._last_epoch = epoch
            now, faults = self.reading, sum(self.faults.values())
            told = (epoch, now.residual, now.confidence, 100 * now.overhead, faults)
            log.info("epoch %d: residual %.2f, confidence %.2f, overhead %.1f%%, %d faults", *told)

    # What users read.

    @property
    def reading(self) -> Reading:
        """How the monitor is doing. Waits for the device."""
        gate = self.engine.reading
        residual, confidence, tau = float("nan"), 0.0, float("nan")
        if gate is not None:  # read together: each by itself would wait
            residual, confidence, tau = torch.stack([gate.residual.mean(), gate.confidence.mean(), gate.tau]).tolist()
        visits = max(self.recorder.num_visits, 1)
        lost = self.recorder.flag_counts["NOT_JUDGED"] + self.recorder.flag_counts["MIXED"]
        return Reading(
            step=self.step_count,
            residual=residual,
            confidence=confidence,
            tau=tau,
            overhead=self.governor.overhead,
            judged=1 - min(lost / visits, 1.0),
        )

    @property
    def _num_recorded(self) -> int:
        """Visits that this process has recorded."""
        return self.recorder.own_visits

    @property
    def _index(self) -> IdIndex:
        return self.recorder.index

    @property
    def _num_waiting(self) -> int:
        return self._visits.num_waiting

    @property
    def _first_unrecorded_step(self) -> int:
        return self._visits.first_step(self.step_count)

    def _task_counters(self) -> dict[str, int]:
        return {
            "resets": int(self.engine.tracker.resets.sum()),
            "holdout_not_finite": self.engine.holdout_not_finite,
            **{f"curvature_{key}": value for key, value in asdict(self.engine.curvature.counters).items()},
            **{f"visits_{name.lower()}": count for name, count in self.recorder.flag_counts.items()},
            "visits_ignored": self._counts.refused.get(OUTSIDE_CLASSES, 0),
        }

    def _describe_reading(self) -> list[str]:
        gate = self.engine.reading
        if gate is None or self._device.type != "cpu":  # elsewhere this would wait for the device
            return []
        read = f"residual {float(gate.residual.mean()):.2f}, confidence {float(gate.confidence.mean()):.2f}"
        return [f"reading: {read}, overhead {self.governor.overhead:.1%}"]

    def _end(self, was_on: bool) -> None:
        try:
            self._visits.flush_alone()  # what is left where the others could not be asked
        except Exception as error:
            self._fault(error)
        if self._visits.notices is not None:
            is_whole = self.peers.is_alone and self.recorder.keeps_evidence and self.recorder.attempt == 0
            self._visits.notices.close(len(self.recorder.index) if is_whole else None)

    def _notices(self, train_size: int, holdout: HoldOut) -> IdNotices | None:
        try:
            held = None if holdout.examples.id_kind == "position" else holdout.ids
            return IdNotices(train_size, _weakly(self._warn_once), held, holdout.labels.cpu().numpy())
        except Exception as error:  # ids of the hold-out that are no ids: nothing to compare with
            log.debug("ids of the hold-out are not compared with those of the training: %s", error)
            return None

    def weights(self, ids: Any) -> Tensor:
        """How much each example should count in the loss, ``[B]``: less, the likelier its label is wrong.

        All ones until half of ``planned_steps``; then, and at a few later points, a call first renews them, which takes
        about as long as :meth:`close` does. In between it is a lookup on the host. Ids that were not seen weigh 1.

        Args:
            ids: as given to :meth:`step`. Weights are float32, on the device of the ids where they are a tensor.

        Raises:
            SgoifError: ``watch`` was not told ``planned_steps``, or several processes train together.
        """
        if not self.peers.is_alone:
            raise SgoifError("weights() works in one process only: of an example's visits each rank has seen some.")
        if not self._weights.planned_steps:
            raise SgoifError(
                "weights() goes by how far the training is; pass method=sgoif.Method(planned_steps=...) to sgoif.watch."
            )
        if self.is_on and self._weights.is_due(self.step_count):
            self._renew_weights()
        found = torch.from_numpy(self._weights.at(self.recorder.index.rows(as_ids(ids))))
        return found.to(ids.device) if isinstance(ids, Tensor) else found

    def _renew_weights(self) -> None:
        try:
            self._flush()
            found = None if self._on_weights is None else self._on_weights(self, self._weights.gains)
            self._weights.renew(found, self.step_count)
        except Exception as error:
            self._weights.renew(None, self.step_count)
            self.fault_log.note(error, "the weights of examples could not be renewed; they stay as they are.")

    def _as_trained(self) -> HoldoutPass:
        """How further examples go through the model: as those of a step."""
        return HoldoutPass(self._forward_as_trained, self._anchor_losses, self._seen.autocast)

    def snapshot(self, path: str | None = None) -> Any:
        """Keep what judges, as of now, to score with later: a :class:`sgoif.snapshot.Snapshot`; None if that fails.

        Call it between steps. It costs a pass or two over the hold-out; model and later scores stay as they are.
        """
        try:
            return None if self._on_snapshot is None else self._on_snapshot(self, self._as_trained(), path)
        except Exception as error:
            self.fault_log.note(error, "no snapshot could be made; the training goes on.")
            return None

    def _task_state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        waiting = self._visits.waiting()
        shared = {
            "engine": self.engine.state_dict(),
            "recorder": self.recorder.shared_state(),
            "visits": [asdict(visits.emptied()) for visits in waiting],
            "holdout_scores": None if self.holdout_scores is None else self.holdout_scores.state_dict(),
        }
        own = {
            "recorder": self.recorder.own_state(),
            "engine": self.engine.own_state(),
            "visits": [asdict(visits) for visits in waiting],
            "weights": self._weights.state_dict(),
        }
        return shared, own

    def _load_task_state(self, shared: Mapping[str, Any], owned: Sequence[Mapping[str, Any]]) -> None:
        self.engine.load_state_dict(shared["engine"])
        if self.holdout_scores is not None and shared["holdout_scores"] is not None:
            self.holdout_scores.load_state_dict(shared["holdout_scores"])
        self.recorder.load_shared(shared["recorder"])
        for own in owned:
            self.recorder.load_own(own["recorder"])
            self.engine.load_own(own["engine"])
            if self.peers.is_alone and len(owned) == 1:
                self._weights.load_state_dict(own["weights"])
        self._visits.load(shared["visits"], [own["visits"] for own in owned])


def _thinned(calls: list[LayerCapture], factor: Tensor | None) -> list[LayerCapture]:
    """The same calls with larger gradients: rows that are ignored have none, and would thin out their mean squares."""
    return calls if factor is None else [replace(call, scale=call.scale * factor) for call in calls]


def _weakly(method: Callable[..., None]) -> Callable[..., None]:
    """A bound method that does not keep its monitor: waiting visits outlive one that is forgotten unclosed."""
    reference = WeakMethod(method)

    def call(*arguments: Any, **named: Any) -> None:
        found = reference()
        if found is not None:
            found(*arguments, **named)

    return call
