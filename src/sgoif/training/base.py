"""What monitors have in common: a training step is surrounded, what passes is captured, and no error of ours gets out.

The user's run is sacred. Setup mistakes raise at the first step, before anything is written. From then on an error in
here is counted, logged once per cause, and the training goes on; after too many in a row the monitor switches itself
off. Among several processes one is too many, and all of them go off.

What is scored, and what is brought up to date after an optimiser step, is a task's own: :class:`sgoif.training.monitor.
Monitor` has classes, :class:`sgoif.training.multilabel.monitor.MultilabelMonitor` tags, and
:class:`sgoif.training.sequences.monitor.SequenceMonitor` the sequences of a language model.
"""

from __future__ import annotations

import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from sgoif.distributed import Peers, SingleProcess
from sgoif.errors import SgoifError
from sgoif.evidence import IdIndex
from sgoif.gradients import Capture, Layer
from sgoif.training.accounting import FaultLog, VisitCounts, cause_of
from sgoif.training.checkpoint import pack, unpack
from sgoif.training.clock import StepKind
from sgoif.training.ending import Ending, close_once
from sgoif.training.losses import Loss
from sgoif.training.schedule import Governor, Plan
from sgoif.training.sinks import ScoreSink
from sgoif.training.step import Step
from sgoif.training.step_capture import StepHooks
from sgoif.training.step_ids import StepIds

__all__ = ["BaseMonitor", "Reading", "WatchedLoop"]

log = logging.getLogger(__name__)

HooksT = TypeVar("HooksT", bound=StepHooks)

_FAR = 2.0  # times the promised overhead: more is warned of
_SETTING_UP = 20  # steps within which the first that can be checked may raise; a GradScaler backs off in as many
_FLUSH_EVERY_S = 30.0  # visits wait on the device for the next refresh, but in one process no longer than this


@dataclass(frozen=True, slots=True)
class Reading:
    """How the monitor is doing."""

    step: int
    residual: float  # mean over anchors
    confidence: float  # mean over anchors
    tau: float
    overhead: float  # share of the bare step, measured so far
    judged: float  # share of visits that added evidence


@dataclass(frozen=True, slots=True)
class WatchedLoop:
    """The training loop that is watched, and what watching it may cost."""

    model: nn.Module
    optimizer: torch.optim.Optimizer | None  # for the learning rate
    forward: Callable[[Any], Tensor]  # hold-out inputs to outputs
    loss: Loss  # that is back-propagated
    governor: Governor  # keeps the overhead within its limit
    facts: Mapping[str, Any] = field(default_factory=dict)  # written into the run
    peers: Peers = field(default_factory=SingleProcess)  # the processes that train together
    is_compiled: bool = False  # whether the model, as the user calls it, runs compiled


class BaseMonitor(ABC, Generic[HooksT]):
    """What every monitor does, whatever it scores.

    Args:
        loop: that is watched.
        hooks: that are on the model while a step runs.
        layers: all scored layers.
        sink: where the run is written to; None for nowhere.
        device: where the hold-out is.
        on_close: makes the run of what was recorded.
    """

    _uses_dataset = False  # whether `close` has a use for the training examples

    def __init__(
        self,
        loop: WatchedLoop,
        hooks: HooksT,
        layers: Sequence[Layer],
        *,
        sink: ScoreSink | None,
        device: torch.device,
        on_close: Callable[[Any], Any] | None = None,
    ) -> None:
        self._on_close = close_once(on_close)
        self.model, self.optimizer, self._seen = loop.model, loop.optimizer, hooks
        self.loss, self.governor, self._sink, self._device = loop.loss, loop.governor, sink, device
        self._forward = loop.forward
        self.facts: dict[str, Any] = dict(loop.facts)  # written into the run; add notes of your own
        self._anchor_capture = Capture(layers)
        self.peers = loop.peers
        self.step_count, self.refreshes, self._micro = 0, 0, 0
        self.closing_dataset: Any = None  # the training examples, while the run is being closed
        self.fault_log = FaultLog(self.peers.max_consecutive_faults)
        self.is_on, self._kind = True, StepKind.SCORED
        self._is_switched_off = self._has_looked = self._has_said_cost = self._has_said_stride = False
        self._counts = VisitCounts()
        self._ids = StepIds()
        self._unaccounted = 0  # rows of the step that is being judged, of which nothing has become yet
        self._steps_here = 0  # since this process began or resumed
        self._pid, self._flushed_at = os.getpid(), 0.0
        self._ending: Ending | None = None
        self._flush_at_end: Callable[[], None] | None = None  # records visits that wait, without the monitor

    # A task's own.

    @abstractmethod
    def _check_targets(self, targets: Any) -> None:
        """Raise for targets that cannot be those of a step, before it begins."""

    @abstractmethod
    def _leave(self, ids: Any, targets: Any) -> None:
        """Judge one micro-batch after its backward pass; ids are read by :meth:`_read_ids`."""

    @abstractmethod
    def _update(self, step: int) -> None:
        """Bring up to date what judges, once per optimiser step; without gradients."""

    @abstractmethod
    def _flush(self) -> None:
        """Bring waiting visits to the host and record them."""

    @abstractmethod
    def _end(self, was_on: bool) -> None:
        """Do what is left to do before the run is made: the last visits are flushed. Never raises."""

    @property
    @abstractmethod
    def reading(self) -> Reading:
        """How the monitor is doing. Waits for the device."""

    @property
    @abstractmethod
    def _num_recorded(self) -> int:
        """Visits that this process has recorded."""

    @property
    @abstractmethod
    def _index(self) -> IdIndex:
        """Ids of the examples that were recorded."""

    @abstractmethod
    def _task_counters(self) -> dict[str, int]:
        """Counters beside those that all tasks have."""

    @abstractmethod
    def _task_state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What later scores depend on: what all processes share, and what this one has for itself."""

    @abstractmethod
    def _load_task_state(self, shared: Mapping[str, Any], owned: Sequence[Mapping[str, Any]]) -> None:
        """Take up what all processes shared, and what those had for themselves that this one takes over from."""

    @property
    def _is_sound(self) -> bool:
        """Whether all rows so far were scored, the last ones without an error."""
        return True

    @property
    def _num_waiting(self) -> int:
        """Visits that are not recorded yet."""
        return 0

    @property
    def _first_unrecorded_step(self) -> int:
        """The first step whose visits are not recorded."""
        return self.step_count

    def _describe_reading(self) -> list[str]:
        """How it is doing, as far as that takes neither the device nor other processes."""
        return []

    # The step.

    def step(
        self,
        ids: Any,
        targets: Tensor,
        *,
        grad_factor: float | Tensor | None = None,
        accumulate: float | Tensor | None = None,
        is_last: bool | None = None,
        weights: Tensor | None = None,
    ) -> Step:
        """Surround the forward and backward pass of one (micro-)batch.

        Args:
            ids: the examples' own ids, ints or strings, ``[B]``.
            targets: as they enter the loss: classes ``[B]`` or probabilities ``[B, C]``; tags ``[B, C]`` of 0 and 1.
            grad_factor: what turns the gradient at the model's output into that of the summed losses, where it is
                neither 1 (sum) nor the batch size (mean): the sum of the class weights, for example.
            accumulate: what this loss is divided by, where it is not the number given to :func:`sgoif.watch`.
            is_last: whether the optimiser steps after this micro-batch; by default after every ``accumulate``-th.
                Frameworks step at the end of an epoch, too.
            weights: of the examples in the loss, ``[B]``, positive, where it is ``(weights * losses).sum() /
                weights.sum()``, or without the division for ``Loss(reduction="sum")``. Scores stay those of the
                unweighted losses.
        """
        self._prepare_step()
        return Step(self, ids, targets, grad_factor, accumulate, is_last, weights)

    def _prepare_step(self) -> None:
        """On the first step refuse a folder that holds another run; later see that visits do not wait for long."""
        if os.getpid() != self._pid:
            self._leave_fork()
        elif not self._has_looked:
            if self._sink is not None and self.is_on:
                self._sink.check_folder()
            self._has_looked, self._flushed_at = True, time.monotonic()
            if self._sink is not None and self._sink.url is not None:
                self._ending = Ending(self, self._flush_at_end, self._sink)
        elif self._ending is not None and self.is_on and time.monotonic() - self._flushed_at > _FLUSH_EVERY_S:
            self._flushed_at = time.monotonic()
            try:
                with self.governor.timer.part("scoring"):
                    self.flush()
            except Exception as error:
                self._fault(error)

    def _cancel_ending(self) -> None:
        """The run was closed: nothing is left to write when the process ends."""
        if self._ending is not None:
            self._ending.cancel()

    def _leave_fork(self) -> bool:
        """Whether this is a forked copy of the process that made the monitor: it must not write that one's run."""
        if os.getpid() == self._pid:
            return False
        if self.is_on:
            self.is_on = False
            log.warning(
                "this process was forked from the one that made the monitor: it scores and writes nothing. Call step() "
                "and close() in process %d, or make another monitor here with another out=.",
                self._pid,
            )
        return True

    @property
    def _may_raise(self) -> bool:
        """Whether a wrong set-up may still raise: until a first step was found sound, and never after some steps."""
        return not self._seen.is_checked and self._steps_here < _SETTING_UP

    def _enter(
        self,
        targets: Any,
        grad_factor: float | Tensor | None,
        accumulate: float | Tensor | None,
        weights: Tensor | None,
    ) -> bool:
        self._seen.forget_failure()
        if not self.is_on:
            return False
        self._check_targets(targets)
        if self._micro == 0:
            self._kind = self.governor.open_step(self.step_count)
        if self._kind is not StepKind.SCORED or not len(targets):
            return False
        self._seen.open(targets, grad_factor, accumulate, weights)
        return True

    def _read_ids(self, ids: Any, count: int) -> Any:
        """The ids of a step; None where they cannot be read, once that no longer raises."""
        try:
            return self._ids.read(ids, count)
        except SgoifError as error:
            if self._may_raise:
                raise
            self._refuse(error)  # the step still tells of curvature, and other processes count on it
            return None

    def _finish_step(self, is_last: bool | None) -> None:
        """Once per optimiser step: bring up to date what judges."""
        if not (self._micro + 1 >= self.loss.accumulate if is_last is None else is_last):
            self._micro += 1
            return
        self._micro, step = 0, self.step_count
        self._steps_here += 1
        self.step_count += 1  # first, so that trouble below does not repeat the step
        if self._kind is StepKind.BARE:
            return
        with torch.no_grad():
            self._update(step)

    def _decide_plan(self, step: int) -> None:
        """When a refresh is due: let the governor change the plan, by what all processes measured."""
        governor = self.governor
        if governor.fixed:
            return
        measured = self.peers.all_reduce_max(governor.measure())
        self._say_cost(measured[0])
        before, governor.plan = governor.plan, self.peers.broadcast(governor.decide(step, measured))
        if before.stride == 1 < governor.plan.stride and not self._has_said_stride:
            self._has_said_stride = True
            log.warning("%s", governor.describe_stride(step))

    def _say_cost(self, overhead: float) -> None:
        """Say what watching costs above the promise: at once where steps are short, else by the rarest plan."""
        governor = self.governor
        if governor.is_at_its_end and overhead > _FAR * governor.max_overhead:
            self._warn_once("overhead", governor.describe_cost(overhead, "even by the rarest plan"))
        elif not self._has_said_cost and governor.has_short_steps and overhead > governor.max_overhead:
            self._has_said_cost = True
            log.warning("%s", governor.describe_short_steps(overhead))

    def _warn_once(self, key: str, text: str, *, again: bool = False) -> None:
        """Warn in the log, once unless ``again``, and write the latest sentence into ``run.info["warnings"]``."""
        warnings = self.facts.setdefault("warnings", {})
        if again or key not in warnings:
            log.warning("%s", text)
        warnings[key] = text

    def _forward_as_trained(self, inputs: Any) -> Tensor:
        """The forward pass in the precision of the training step; nothing but the forward pass is."""
        with self._seen.precision(self._seen.autocast):
            return self._forward(inputs)

    # Faults.

    def _refuse(self, error: SgoifError) -> None:
        """Count the rows of this step as refused: what was given cannot be scored."""
        cause = self.fault_log.note(error, "a batch cannot be scored; the training goes on.")
        self._counts.refuse(self._unaccounted, cause)
        self._unaccounted = 0

    def _step_failed(self, error: Exception) -> None:
        """Count the rows of a step that could not be judged, and the error."""
        if isinstance(error, SgoifError) and self.peers.is_alone:
            self._refuse(error)
            return
        (self._counts.refuse if isinstance(error, SgoifError) else self._counts.lose)(
            self._unaccounted, cause_of(error)
        )
        self._unaccounted = 0
        self._fault(error)

    def _fault(self, error: Exception) -> None:
        if self.fault_log.step_failed(error) and self.is_on:
            self._switch_off(error)

    def _switch_off(self, error: Exception) -> None:
        """Score no more, here and, as soon as they ask, in all other processes; say why in the log and in the run."""
        self.is_on = False
        self._is_switched_off = True
        self.peers.abort()
        where = {} if self.peers.is_alone else {"rank": self.peers.rank}
        self.facts["switched_off"] = {"step": self.step_count, **where, "reason": f"{type(error).__name__}: {error}"}
        log.warning(
            "the monitor is off after step %d: %s%s. The training goes on.",
            self.step_count,
            cause_of(error),
            "" if self.peers.is_alone else f" on all {self.peers.size} ranks, this is rank {self.peers.rank}",
        )
        if self._sink is not None and self.peers.rank == 0:
            self._sink.write_info({"switched_off": self.facts["switched_off"]})

    @property
    def faults(self) -> dict[str, int]:
        """Errors of our own so far, by cause."""
        return self.fault_log.counts

    # What users read and do.

    @property
    def plan(self) -> Plan:
        """What is done at which step, as of now. What that costs is measured: see ``reading.overhead``."""
        return self.governor.plan

    def __repr__(self) -> str:
        """How it stands, in a few lines; asks neither the device nor other processes."""
        try:
            return "\n".join(self._described())
        except Exception as error:  # a debugger may ask at any moment
            return f"<{type(self).__name__}: {type(error).__name__}: {error}>"

    def _described(self) -> list[str]:
        state = "on" if self.is_on else "off"
        switched = self.facts.get("switched_off")
        if isinstance(switched, dict):
            state = f"off since step {switched.get('step')}: {switched.get('reason')}"
        counts = f"{self._num_recorded:,} visits recorded, {self.refreshes:,} looks at the hold-out"
        lines = [f"{type(self).__name__}, {state}: {self.step_count:,} steps, {counts}", *self._describe_reading()]
        lines.append(str(self.governor.plan))
        lines += [f"fault: {number} x {cause}" for cause, number in self.faults.items()] or ["faults: none"]
        return [*lines, f"writes to: {'memory' if self._sink is None else self._sink.url or 'memory'}"]

    def flush(self) -> None:
        """Record the visits so far. Among several processes they are recorded at refreshes, where all meet."""
        if self.peers.is_alone:
            self._flush()

    @property
    def counters(self) -> dict[str, int]:
        """How much was done: steps, visits, refreshes, faults, and what the task counts. Waits for the device.

        Of this process: ``visits_offered == visits + visits_refused + visits_lost``. Among several processes
        ``visits_waiting`` for the next refresh come to it; after :meth:`close` nothing waits.
        """
        self.flush()
        return {
            "steps": self.step_count,
            "visits": self._num_recorded,
            "refreshes": self.refreshes,
            "faults": sum(self.faults.values()),
            **self._task_counters(),
            **self._counts.counters(),
            "visits_waiting": self._num_waiting,
        }

    def close(self, dataset: Any = None) -> Any:
        """Record what is waiting, write the run down and return it; None in a forked process, which has no run.

        Args:
            dataset: the training examples, as :func:`sgoif.audit` takes them, under the ids of :meth:`step`. The
                finished model looks at each once more: labels are better judged by one model than by those of many
                visits. It costs a forward pass; without it each example's last visit is used. Other tasks than
                classification have no use for it, and say so.
        """
        if self._leave_fork():
            return None
        if dataset is not None and not self._uses_dataset:
            log.warning("close(dataset) is for runs with one class per example; a %s ignores it.", type(self).__name__)
            dataset = None
        was_on, self.is_on = self.is_on, False
        try:
            if was_on or self.peers.is_alone:
                self._flush()
        except Exception as error:
            self._fault(error)
        self._end(was_on)
        self._close_counts(self._num_recorded)
        self.closing_dataset = dataset
        try:
            return self._on_close(self)
        finally:
            self.closing_dataset = None
            self._cancel_ending()

    def state_dict(self) -> dict[str, Any]:
        """All that later scores depend on; save it beside the model's. What was recorded so far is on disk then.

        For ``torch.save``, whose file ``torch.load`` reads as it is, or give the monitor itself to
        ``torch.distributed.checkpoint``. No collective. Among several processes call it in each: visits that wait for
        the next refresh are in the state of the process that saw them, and the rest is the same in all.
        """
        self.flush()
        if self._sink is not None:
            self._sink.checkpoint()
        shared, own = self._task_state()
        shared |= {
            "governor": self.governor.state_dict(),
            "step_count": self.step_count,
            "refreshes": self.refreshes,
            "micro": self._micro,
            "autocast": self._seen.autocast,
        }
        own |= {"faults": dict(self.faults), "counts": self._counts.state_dict()}
        return pack(shared, own, self.peers)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume, with as many processes or others: later scores are those that the saved run would have given."""
        shared, by_rank = unpack(state, self.peers, self._device)
        owned = list(by_rank.values())
        self._load_task_state(shared, owned)
        self.governor.load_state_dict(shared["governor"])
        self.step_count, self.refreshes = int(shared["step_count"]), int(shared["refreshes"])
        self._micro, self._seen.autocast = int(shared["micro"]), shared["autocast"]
        self.fault_log.load([own["faults"] for own in owned])
        self._counts.load(own["counts"] for own in owned)
        self._ids.kind, self._steps_here = self._index.kind, 0
        if self._sink is not None:
            self._sink.resume(self._first_unrecorded_step)

    def _close_counts(self, recorded: int) -> None:
        """Say in one line what became of the visits, and whether their price was above the promise."""
        governor = self.governor
        if not governor.fixed and governor.overhead > _FAR * governor.max_overhead and self._steps_here >= _SETTING_UP:
            self._warn_once("overhead", governor.describe_cost(governor.overhead, "over the whole run"))
        if not_finite := self._task_counters().get("visits_not_finite", 0):
            self._warn_once(
                "not_finite",
                f"{not_finite:,} of {recorded:,} visits had a loss or scores that are not finite, as where a training "
                "diverges, and count for nothing",
            )
        level = logging.WARNING if self._counts.num_refused or self._counts.num_lost or self.faults else logging.INFO
        log.log(level, "%s.", self._counts.describe(recorded))
        self.facts["visits_refused"], self.facts["visits_lost"] = dict(self._counts.refused), dict(self._counts.lost)

    def detach(self) -> None:
        """Stop scoring; the training loop may go on using the monitor, which then does nothing."""
        self.is_on = False
