"""The monitor: drives one training step through capture, scoring and update, and never lets its own trouble out.

The user's run is sacred. Setup mistakes raise at the first step, before anything is written. From then on an error in
here is counted, logged once per cause, and the training goes on; after too many in a row the monitor switches itself
off. Among several processes one is too many, and all of them go off.

Processes meet in :meth:`Monitor._finish_step` and nowhere else while the training goes on; docs/distributed.md says
what is exchanged there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from sgoif.distributed import Alone, Peers
from sgoif.errors import CaptureError, HeadError, SgoifError
from sgoif.evidence import Sketches
from sgoif.gradients import Capture, LayerCapture
from sgoif.gradients.contractions import widen
from sgoif.training.anchorlog import anchor_health, anchor_rows
from sgoif.training.canaries import CanaryLedger
from sgoif.training.checkpoint import pack, unpack
from sgoif.training.clock import StepKind
from sgoif.training.engine import Engine
from sgoif.training.faults import FaultLog
from sgoif.training.forecast import Forecast, Forecaster
from sgoif.training.losses import HoldoutPass, LossSettings, check_loss, holdout_losses, logits_of
from sgoif.training.reading import Reading
from sgoif.training.recorder import Recorder
from sgoif.training.schedule import Governor, Plan
from sgoif.training.stepping import Step
from sgoif.training.targets import read_targets, without_classes
from sgoif.training.visitbook import VisitBook

__all__ = ["Monitor", "Reading"]

log = logging.getLogger(__name__)


class Monitor:
    """Scores every example that passes through the training loop. Made by :func:`sgoif.watch`."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        engine: Engine,
        *,
        forward: Callable[[Any], Tensor],
        loss: LossSettings,
        governor: Governor,
        recorder: Recorder,
        ledger: CanaryLedger | None = None,
        facts: Mapping[str, Any] | None = None,
        on_close: Callable[[Monitor], Any] | None = None,
        on_snapshot: Callable[[Monitor, HoldoutPass, str | None], Any] | None = None,
        forecaster: Forecaster | None = None,
        peers: Peers | None = None,
    ) -> None:
        self.model, self.optimizer, self.engine = model, optimizer, engine
        self.loss, self.governor, self.recorder = loss, governor, recorder
        self._forward, self.ledger, self._forecaster = forward, ledger, forecaster
        self._on_close, self._on_snapshot = on_close, on_snapshot
        self.sketches: Sketches | None = None  # by which copies are found; made by whoever has the plain inputs
        self.facts: dict[str, Any] = dict(facts or {})  # written into the run; add notes of your own
        self._capture = Capture(engine.layers, keep_outputs=[engine.head.module_name], on_error=self._caught)
        self._anchor_capture = Capture(engine.layers)
        self.peers = peers or Alone()
        self._visits = VisitBook(recorder, self.peers)
        self.step_count, self.refreshes, self._micro = 0, 0, 0
        self.fault_log = FaultLog(self.peers.faults_borne)
        self._last_epoch = 0
        self._failed_in_hook: Exception | None = None
        self.is_on, self._checked, self._kind = True, False, StepKind.SCORED
        self._has_measured = False  # curvature that is not absorbed yet
        self.visits_given_up = 0  # in bare steps, half of the pairs by which the cost is measured
        self._autocast: torch.dtype | None = None
        self._anchor_losses = loss.losses

    # The step.

    def step(
        self,
        ids: Any,
        targets: Tensor,
        *,
        grad_factor: float | Tensor | None = None,
        accumulate: float | Tensor | None = None,
        is_last: bool | None = None,
    ) -> Step:
        """Surround the forward and backward pass of one (micro-)batch.

        Args:
            ids: the examples' own ids, ints or strings, ``[B]``.
            targets: as they enter the loss: classes ``[B]`` or probabilities ``[B, C]``.
            grad_factor: what turns the gradient at the model's output into that of the summed losses, where it is
                neither 1 (sum) nor the batch size (mean): the sum of the class weights, for example.
            accumulate: what this loss is divided by, where it is not the number given to :func:`sgoif.watch`.
            is_last: whether the optimiser steps after this micro-batch; by default after every ``accumulate``-th.
                Frameworks step at the end of an epoch, too.
        """
        return Step(self, ids, targets, grad_factor, accumulate, is_last)

    def _enter(self, targets: Tensor, grad_factor: float | Tensor | None, accumulate: float | Tensor | None) -> bool:
        if not self.is_on:
            return False
        if self._micro == 0:
            self._kind = self.governor.open_step(self.step_count)
        if not self._checked and self._forecaster is not None and self._forecaster.learn(len(targets)):
            log.info("%s", self.plan)
        if self._kind is not StepKind.SCORED:
            self.visits_given_up += len(targets) if self._kind is StepKind.BARE else 0
            return False
        self._capture.scale = self.loss.scale(len(targets), accumulate) if grad_factor is None else grad_factor
        self._capture.num_examples = len(targets)
        self._capture.__enter__()
        return True

    def _leave(self, ids: Any, targets: Tensor) -> None:
        """After backward: score, note curvature, and at the end of an optimiser step update."""
        calls = list(self._capture.calls)
        self._capture.clear()
        if self._failed_in_hook is not None:
            error, self._failed_in_hook = self._failed_in_hook, None
            raise error
        head = self._head_call(calls)
        outputs = logits_of(head)
        if len(ids) != len(targets):
            raise SgoifError(f"step() got {len(ids)} ids for {len(targets)} targets.")
        given = read_targets(
            targets, outputs, label_smoothing=self.loss.label_smoothing, meaning=self.loss.soft_targets
        )
        if not self._checked:
            self._check(head, outputs, targets)
        with torch.no_grad():
            signals = self.engine.score(calls, outputs, given.labels, given.mixed)
            signals = without_classes(signals, given, targets, widen(outputs))
            self._visits.add(ids, given.recorded, signals, self.step_count, self._micro, self._sketched(calls))
            self.engine.note_gradient(calls)
            if self.governor.plan.is_observe(self.step_count) or not self.engine.tracker.is_ready:
                with self.governor.timer.part("curvature"):
                    self.engine.measure(calls)
                self._has_measured = True

    def _sketched(self, calls: list[LayerCapture]) -> Tensor | None:
        """Sketch what the model saw; scores are worth having without."""
        try:
            return self.engine.sketch(calls)
        except Exception as error:
            self.fault_log.note(error, "a step's examples could not be sketched; their scores are kept.")
            return None

    def _finish_step(self, is_last: bool | None) -> None:
        """Once per optimiser step: curvature, anchors when due, one product per direction."""
        if not (self._micro + 1 >= self.loss.accumulate if is_last is None else is_last):
            self._micro += 1
            return
        self._micro, step = 0, self.step_count
        self.step_count += 1  # first, so that trouble below does not repeat the step
        if self._kind is StepKind.BARE:
            return
        is_refresh = self.governor.plan.is_refresh(step)
        with torch.no_grad():
            if self._has_measured or is_refresh or self.engine.gate.needs_gradient:
                self.peers.meet(step, self._has_measured, is_refresh)
            if self._has_measured:
                self._has_measured = False
                with self.governor.timer.part("curvature"):
                    self.engine.absorb()
            if is_refresh:
                with self.governor.timer.part("refresh"):
                    self._refresh(step)
            group = self.optimizer.param_groups[0] if self.optimizer is not None else {}
            self.engine.advance(float(group.get("lr", 0.0)), float(group.get("weight_decay", 0.0) or 0.0))

    def _refresh(self, step: int) -> None:
        self.refreshes += 1
        self._settle()  # first: whatever becomes of the refresh, visits do not wait for another
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
            rows = anchor_rows(self.engine, anchor_health(self.engine, draw), step)
            if rows:
                self.recorder.sink.write_table("anchors", rows)
        if self.ledger is not None and self.ledger.add(draw, self.engine, step):
            self.engine.anchors.trust = self.peers.tell(self.engine.anchors.trust)
        if not self.governor.fixed:
            (overhead,) = self.peers.largest([self.governor.recent_overhead()])
            self.governor.plan = self.peers.tell(self.governor.decide(step, overhead))

    def _forward_as_trained(self, inputs: Any) -> Tensor:
        """The forward pass in the precision of the training step; nothing but the forward pass is."""
        with self._precision(self._autocast):
            return self._forward(inputs)

    def _precision(self, dtype: torch.dtype | None) -> AbstractContextManager[object]:
        device = self.engine.holdout.device.type
        if not torch.amp.is_autocast_available(device):
            return nullcontext()
        return torch.autocast(device, dtype, enabled=dtype is not None)

    def _head_call(self, calls: list[LayerCapture]) -> LayerCapture:
        found = [call for call in calls if call.layer == self.engine.head.name]
        if len(found) != 1:
            raise HeadError(
                f"the head {self.engine.head.name!r} received {len(found)} gradients in this step, needed is one; "
                "run forward and backward of one batch inside `with monitor.step(...)`."
            )
        return found[0]

    def _check(self, head: LayerCapture, outputs: Tensor, targets: Tensor) -> None:
        """On the first step: is the gradient at the head what the declared loss says?"""
        is_low = head.output_grad.dtype in (torch.bfloat16, torch.float16)
        weight = next(iter(self.engine.head.parameters.values()))
        if is_low and weight.dtype == torch.float32 and not self.engine.is_sharded:  # whose policy is the model's own
            self._autocast = head.output_grad.dtype
        self._anchor_losses = holdout_losses(self.loss, targets)
        self._checked = check_loss(self.loss, head, outputs, targets, self._capture.scale)

    # Bookkeeping.

    def flush(self) -> None:
        """Record the visits so far. Among several processes they are recorded at refreshes, where all meet."""
        if self.peers.is_alone:
            self._settle()

    def _settle(self) -> None:
        """Bring the waiting visits to the host, in one transfer, and record them. The one place that waits."""
        self._visits.settle()
        self._log_epoch()

    def _log_epoch(self) -> None:
        epoch = self.recorder.num_visits // max(self.recorder.train_size, 1)
        if epoch > self._last_epoch and self.engine.reading is not None:
            self._last_epoch = epoch
            now, faults = self.reading, sum(self.faults.values())
            told = (epoch, now.residual, now.confidence, 100 * now.overhead, faults)
            log.info("epoch %d: residual %.2f, confidence %.2f, overhead %.1f%%, %d faults", *told)

    def _caught(self, error: Exception) -> None:
        """An error inside a hook: keep it for the end of the step, so that the user's backward goes on."""
        self._failed_in_hook = error

    def _fault(self, error: Exception) -> None:
        if self.fault_log.step_failed(error) and self.is_on:
            self._switch_off(error)

    def _switch_off(self, error: Exception) -> None:
        """Score no more, here and, as soon as they ask, in all other processes; say why in the log and in the run."""
        self.is_on = False
        self.peers.leave()
        where = {} if self.peers.is_alone else {"rank": self.peers.rank}
        self.facts["switched_off"] = {"step": self.step_count, **where, "reason": f"{type(error).__name__}: {error}"}
        log.warning(
            "%d steps in a row could not be scored; the monitor is off%s. The training goes on.",
            self.fault_log.in_a_row,
            "" if self.peers.is_alone else f" on all {self.peers.size} ranks, this is rank {self.peers.rank}",
        )
        write_info = getattr(self.recorder.sink, "write_info", None)
        if write_info is not None and self.peers.rank == 0:
            write_info({"switched_off": self.facts["switched_off"]})

    @property
    def faults(self) -> dict[str, int]:
        """Errors of our own so far, by cause."""
        return self.fault_log.counts

    # What users read.

    @property
    def plan(self) -> Plan:
        """What is done at which step, as of now. Printed, it tells what that will cost."""
        return self.governor.plan.with_forecast(self.forecast)

    @property
    def forecast(self) -> Forecast | None:
        """What the plan will cost; None until the batch size is known from ``watch`` or from the first step."""
        return None if self._forecaster is None else self._forecaster.forecast(self.governor.plan, self._autocast)

    @property
    def reading(self) -> Reading:
        """How the monitor is doing. Waits for the device."""
        gate = self.engine.reading
        visits = max(self.recorder.num_visits, 1)
        lost = self.recorder.flag_counts["NOT_JUDGED"] + self.recorder.flag_counts["MIXED"]
        return Reading(
            step=self.step_count,
            residual=float("nan") if gate is None else float(gate.residual.mean()),
            confidence=0.0 if gate is None else float(gate.confidence.mean()),
            tau=float("nan") if gate is None else float(gate.tau),
            overhead=self.governor.overhead,
            judged=1 - min(lost / visits, 1.0),
        )

    @property
    def counters(self) -> dict[str, int]:
        """How much was done: steps, visits, refreshes, products, resets, flags, faults. Waits for the device."""
        self.flush()
        work = {f"curvature_{key}": value for key, value in asdict(self.engine.curvature.counters).items()}
        flags = {f"visits_{name.lower()}": count for name, count in self.recorder.flag_counts.items()}
        return {
            "steps": self.step_count,
            "visits": self.recorder.num_visits,
            "refreshes": self.refreshes,
            "resets": int(self.engine.tracker.resets.sum()),
            "faults": sum(self.faults.values()),
            "visits_given_up": self.visits_given_up,
            "holdout_not_finite": self.engine.holdout_not_finite,
            **work,
            **flags,
        }

    def detach(self) -> None:
        """Stop scoring; the training loop may go on using the monitor, which then does nothing."""
        self.is_on = False

    def close(self) -> Any:
        """Record what is waiting, write the run down and return it."""
        was_on, self.is_on = self.is_on, False
        try:
            if was_on or self.peers.is_alone:
                self._settle()
        except Exception as error:
            self._fault(error)
        try:
            self._visits.settle_alone()  # what is left where the others could not be asked
        except Exception as error:
            self._fault(error)
        return None if self._on_close is None else self._on_close(self)

    def snapshot(self, path: str | None = None) -> Any:
        """Keep what judges, as of now, to score with later: a :class:`sgoif.snapshot.Snapshot`; None if that fails.

        Call it between steps. It costs a pass or two over the hold-out; model and later scores stay as they are.
        """
        seen = HoldoutPass(self._forward_as_trained, self._anchor_losses, self._autocast)
        try:
            return None if self._on_snapshot is None else self._on_snapshot(self, seen, path)
        except Exception as error:
            self.fault_log.note(error, "no snapshot could be made; the training goes on.")
            return None

    def state_dict(self) -> dict[str, Any]:
        """All that later scores depend on; save it beside the model's. What was recorded so far is on disk then.

        For ``torch.save``, whose file ``torch.load`` reads as it is, or give the monitor itself to
        ``torch.distributed.checkpoint``. No collective. Among several processes call it in each: visits that wait for
        the next refresh are in the state of the process that saw them, and the rest is the same in all.
        """
        self.flush()
        checkpoint = getattr(self.recorder.sink, "checkpoint", None)
        if checkpoint is not None:
            checkpoint()
        waiting = self._visits.waiting()
        shared = {
            "engine": self.engine.state_dict(),
            "recorder": self.recorder.shared_state(),
            "governor": self.governor.state_dict(),
            "step_count": self.step_count,
            "refreshes": self.refreshes,
            "visits": [asdict(visits.emptied()) for visits in waiting],
            "micro": self._micro,
            "autocast": self._autocast,
            "ledger": None if self.ledger is None else self.ledger.state_dict(),
        }
        own = {
            "recorder": self.recorder.own_state(),
            "visits": [asdict(visits) for visits in waiting],
            "faults": dict(self.faults),
        }
        return pack(shared, own, self.peers)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume, with as many processes or others: later scores are those that the saved run would have given."""
        shared, owned = unpack(state, self.peers, self.engine.holdout.device)
        self.engine.load_state_dict(shared["engine"])
        self.governor.load_state_dict(shared["governor"])
        self.step_count, self.refreshes = int(shared["step_count"]), int(shared["refreshes"])
        self._micro, self._autocast = int(shared["micro"]), shared["autocast"]
        if self.ledger is not None and shared["ledger"] is not None:
            self.ledger.load_state_dict(shared["ledger"])
        self.recorder.load_shared(shared["recorder"])
        for own in owned.values():
            self.recorder.load_own(own["recorder"])
        self.fault_log.load([own["faults"] for own in owned.values()])
        self._visits.load(shared["visits"], [own["visits"] for own in owned.values()])
        resume = getattr(self.recorder.sink, "resume", None)
        if resume is not None:
            resume(self._visits.first_step(self.step_count))
