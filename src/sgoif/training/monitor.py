"""The monitor: drives one training step through capture, scoring and update, and never lets its own trouble out.

The user's run is sacred. Setup mistakes raise at the first step, before anything is written. From then on an error in
here is counted, logged once per cause, and the training goes on; after too many in a row the monitor switches itself
off.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from sgoif.errors import HeadError, SgoifError
from sgoif.gradients import Capture, LayerCapture, check_factor, fit_factor, gradient_factor
from sgoif.gradients.contractions import widen
from sgoif.training.canaries import CanaryLedger
from sgoif.training.engine import Engine
from sgoif.training.recorder import PendingVisits, Recorder, as_ids
from sgoif.training.schedule import Governor, Plan

__all__ = ["LossSettings", "Monitor", "Reading", "logits_of"]

log = logging.getLogger(__name__)

_TOO_MANY_FAULTS = 20  # in a row


@dataclass(frozen=True, slots=True)
class LossSettings:
    """What lies between an example's loss and the gradient that backward makes of it."""

    losses: Callable[[Tensor, Tensor], Tensor]  # outputs and targets to per-example losses
    reduction: str = "mean"
    accumulate: int = 1
    scaler: Any = None
    label_smoothing: float = 0.0


@dataclass(frozen=True, slots=True)
class Reading:
    """How the monitor is doing, read on the host when asked for."""

    step: int
    residual: float  # mean over anchors
    confidence: float  # mean over anchors
    tau: float
    overhead: float  # share of the bare step, measured so far
    judged: float  # share of visits that added evidence


@dataclass(slots=True)
class _Pending:
    ids: Any
    labels: Tensor
    signals: Tensor
    step: int
    micro_step: int


@dataclass
class _Clock:
    """Wall time of the loop and of our share of it."""

    ours_s: float = 0.0
    last_end: float | None = None
    started: float = field(default_factory=time.perf_counter)


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
        on_close: Callable[[Monitor], Any] | None = None,
    ) -> None:
        self.model, self.optimizer, self.engine = model, optimizer, engine
        self.loss, self.governor, self.recorder = loss, governor, recorder
        self._forward, self.ledger, self._on_close = forward, ledger, on_close
        head = engine.head.module_name
        self._capture = Capture(engine.layers, keep_outputs=[head], on_error=self._caught)
        self._anchor_capture = Capture(engine.layers)
        self._pending: list[_Pending] = []
        self._micro = 0
        self.step_count = 0
        self.refreshes = 0
        self.faults: dict[str, int] = {}
        self._faults_in_a_row = 0
        self._failed_in_hook: Exception | None = None
        self.is_on = True
        self._checked = False
        self._autocast: torch.dtype | None = None
        self._clock = _Clock()
        self._last_epoch = 0

    # The step.

    def step(self, ids: Any, targets: Tensor, *, grad_factor: float | Tensor | None = None) -> _Step:
        """Surround the forward and backward pass of one (micro-)batch.

        Args:
            ids: the examples' own ids, ints or strings, ``[B]``.
            targets: as they enter the loss: classes ``[B]`` or probabilities ``[B, C]``.
            grad_factor: what turns the gradient at the model's output into that of the summed losses, where it is
                neither 1 (sum) nor the batch size (mean): the sum of the class weights, for example.
        """
        return _Step(self, ids, targets, grad_factor)

    def _enter(self, targets: Tensor, grad_factor: float | Tensor | None) -> bool:
        if not (self.is_on and self.plan.is_scored(self.step_count)):
            return False
        self._capture.scale = self._scale(len(targets)) if grad_factor is None else grad_factor
        self._capture.num_examples = len(targets)
        self._capture.__enter__()
        return True

    def _scale(self, num_examples: int) -> float | Tensor:
        scaler = self.loss.scaler
        scale: float | Tensor = 1.0
        if scaler is not None and scaler.is_enabled():
            on_device = getattr(scaler, "_scale", None)  # get_scale() would wait for the device
            scale = on_device if isinstance(on_device, Tensor) else float(scaler.get_scale())
        return gradient_factor(
            loss_reduction=self.loss.reduction,
            num_examples=num_examples,
            accumulate=self.loss.accumulate,
            loss_scale=scale,
        )

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
        labels, mixed = self._labels(targets, outputs)
        if not self._checked:
            self._check(head, outputs, targets)
        with torch.no_grad():
            signals = self.engine.score(calls, outputs, labels, mixed)
            self._pending.append(_Pending(_kept(ids), labels, signals, self.step_count, self._micro))
            self.engine.note_gradient(calls)
            if self.plan.is_observe(self.step_count) or not self.engine.tracker.is_ready:
                self.engine.measure(calls)

    def _finish_step(self) -> None:
        """Once per optimiser step: curvature, anchors when due, one product per direction."""
        if self._micro + 1 < self.loss.accumulate:
            self._micro += 1
            return
        self._micro, step = 0, self.step_count
        self.step_count += 1  # first, so that trouble below does not repeat the step
        with torch.no_grad():
            self.engine.absorb()
            if self.plan.is_refresh(step):
                self._refresh(step)
            group = self.optimizer.param_groups[0] if self.optimizer is not None else {}
            self.engine.advance(float(group.get("lr", 0.0)), float(group.get("weight_decay", 0.0) or 0.0))

    def _refresh(self, step: int) -> None:
        self.refreshes += 1
        draw = self.engine.refresh(self.model, self._anchor_capture, self._forward_as_trained, self.loss.losses)
        self.flush()
        if self.ledger is not None:
            self.ledger.add(draw, self.engine, step)
        self.governor.decide(step)

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

    def _labels(self, targets: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor | None]:
        if targets.dim() == 1:
            return targets.long().clone(), None  # kept until the next refresh; the user may reuse the tensor
        if targets.shape != outputs.shape:
            raise SgoifError(f"targets have shape {tuple(targets.shape)}, the model's outputs {tuple(outputs.shape)}.")
        smoothing, classes = self.loss.label_smoothing, outputs.shape[1]
        pure = 1 - smoothing + smoothing / classes
        top, labels = targets.max(1)
        return labels, top < min(pure, 1.0) - 1e-3

    def _check(self, head: LayerCapture, outputs: Tensor, targets: Tensor) -> None:
        """On the first step: is the gradient at the head what the declared loss says?"""
        low = head.output_grad.dtype in (torch.bfloat16, torch.float16)
        weight = next(iter(self.engine.head.parameters.values()))
        if low and weight.dtype == torch.float32:
            self._autocast = head.output_grad.dtype
        with torch.enable_grad():
            z = widen(outputs).detach().requires_grad_()
            (expected,) = torch.autograd.grad(self.loss.losses(z, targets).sum(), z)
        grad = head.grad if head.grad.dim() == 2 else head.grad.flatten(2).sum(2)
        check_factor(fit_factor(grad, expected), self._capture.scale, low_precision=low)
        self._checked = True

    # Bookkeeping.

    def flush(self) -> None:
        """Bring the waiting visits to the host, in one transfer, and record them. The one place that waits."""
        if not self._pending:
            return
        waiting, self._pending = self._pending, []
        sizes = [len(item.signals) for item in waiting]
        signals = torch.cat([item.signals for item in waiting])
        labels = torch.cat([item.labels for item in waiting]).to(signals.dtype)
        packed = torch.cat([signals, labels[:, None]], 1).cpu().numpy()
        start = 0
        for item, size in zip(waiting, sizes, strict=True):
            part = packed[start : start + size]
            start += size
            self.recorder.record(
                PendingVisits(as_ids(item.ids), part[:, -1].astype("int64"), part[:, :-1], item.step, item.micro_step)
            )
        self._log_epoch()

    def _log_epoch(self) -> None:
        epoch = self.recorder.num_visits // max(self.recorder.train_size, 1)
        if epoch > self._last_epoch and self.engine.reading is not None:
            self._last_epoch = epoch
            now = self.reading
            log.info(
                "epoch %d: residual %.2f, confidence %.2f, overhead %.1f%%, %d faults",
                epoch,
                now.residual,
                now.confidence,
                100 * now.overhead,
                sum(self.faults.values()),
            )

    def _caught(self, error: Exception) -> None:
        """An error inside a hook: keep it for the end of the step, so that the user's backward goes on."""
        self._failed_in_hook = error

    def _fault(self, error: Exception) -> None:
        cause = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        if cause not in self.faults:
            log.warning("a step could not be scored; the training goes on. %s", cause)
        self.faults[cause] = self.faults.get(cause, 0) + 1
        self._faults_in_a_row += 1
        if self._faults_in_a_row >= _TOO_MANY_FAULTS:
            self.is_on = False
            log.warning("%d steps in a row could not be scored; the monitor is off.", _TOO_MANY_FAULTS)

    # What users read.

    @property
    def plan(self) -> Plan:
        """What is done at which step, as of now."""
        return self.governor.plan

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
            **work,
            **flags,
        }

    def detach(self) -> None:
        """Stop scoring; the training loop may go on using the monitor, which then does nothing."""
        self.is_on = False

    def close(self) -> Any:
        """Record what is waiting, close the sink and return the run."""
        self.detach()
        try:
            self.flush()
        except Exception as error:
            self._fault(error)
        if self.recorder.sink is not None:
            self.recorder.sink.close()
        return None if self._on_close is None else self._on_close(self)

    def state_dict(self) -> dict[str, Any]:
        """All that later scores depend on; save it beside the model's."""
        self.flush()
        return {
            "engine": self.engine.state_dict(),
            "recorder": self.recorder.state_dict(),
            "governor": self.governor.state_dict(),
            "step_count": self.step_count,
            "refreshes": self.refreshes,
            "faults": dict(self.faults),
            "micro": self._micro,
            "autocast": self._autocast,
            "ledger": None if self.ledger is None else self.ledger.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume: later scores are those that the saved run would have given."""
        self.engine.load_state_dict(state["engine"])
        self.recorder.load_state_dict(state["recorder"])
        self.governor.load_state_dict(state["governor"])
        self.step_count, self.refreshes = int(state["step_count"]), int(state["refreshes"])
        self.faults, self._micro, self._autocast = dict(state["faults"]), int(state["micro"]), state["autocast"]
        if self.ledger is not None and state["ledger"] is not None:
            self.ledger.load_state_dict(state["ledger"])


class _Step:
    """The context of one micro-step. Its own trouble is caught; the user's exceptions pass through untouched."""

    __slots__ = ("_entered", "_grad_factor", "_ids", "_is_open", "_monitor", "_spent", "_targets")

    def __init__(self, monitor: Monitor, ids: Any, targets: Tensor, grad_factor: float | Tensor | None) -> None:
        self._monitor, self._ids, self._targets, self._grad_factor = monitor, ids, targets, grad_factor
        self._is_open, self._entered, self._spent = False, 0.0, 0.0

    def __enter__(self) -> _Step:
        begun = time.perf_counter()
        monitor = self._monitor
        try:
            self._is_open = monitor._enter(self._targets, self._grad_factor)
        except Exception as error:
            monitor._fault(error)
        self._spent = time.perf_counter() - begun
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        begun = time.perf_counter()
        monitor, clock = self._monitor, self._monitor._clock
        if self._is_open:
            monitor._capture.__exit__(kind, error, trace)
        if not monitor.is_on or kind is not None:
            return
        is_sound = True
        if self._is_open:
            is_sound = self._guarded(lambda: monitor._leave(self._ids, self._targets))
        is_sound = self._guarded(monitor._finish_step) and is_sound
        if is_sound:
            monitor._faults_in_a_row = 0
        ended = time.perf_counter()
        if clock.last_end is not None:
            monitor.governor.note(self._spent + ended - begun, ended - clock.last_end)
        clock.last_end = ended

    def _guarded(self, action: Callable[[], None]) -> bool:
        """Run a part of our work; False where it failed, which the training must not feel."""
        monitor = self._monitor
        try:
            with monitor._precision(None):  # the user's autocast may still be open around us
                action()
        except SgoifError as problem:
            if not monitor._checked:
                raise  # the first step: a mistake in the set-up, said before anything is written
            monitor._fault(problem)
            return False
        except Exception as problem:
            monitor._fault(problem)
            return False
        return True


def _kept(ids: Any) -> Any:
    """A copy of the ids that later changes of the user's buffer do not reach, without waiting for the device."""
    if isinstance(ids, Tensor) and ids.device.type != "cpu":
        return ids.clone()
    return as_ids(ids).copy()


def logits_of(head: LayerCapture) -> Tensor:
    """The model's outputs, ``[B, C]``; a convolutional head is averaged over positions."""
    assert head.output is not None
    return head.output if head.output.dim() == 2 else head.output.flatten(2).mean(2)
