"""The monitor of language models: judges every sequence against groups of evaluation sequences. Experimental."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sgoif.curvature import Statistic
from sgoif.distributed import is_sharded
from sgoif.errors import HeadError, SgoifError
from sgoif.evidence import IdIndex
from sgoif.gradients.segments import Segments
from sgoif.influence.groups import AVERAGED
from sgoif.influence.sequence_sets import batch_of_one
from sgoif.influence.tokens import differentiate_tokens
from sgoif.inputs.items import move_to
from sgoif.tasks.sequences import IGNORED, next_tokens
from sgoif.training.base import BaseMonitor, Reading, WatchedLoop
from sgoif.training.sequences.capture import ComparedLosses, SequenceBatch, SequenceCapture
from sgoif.training.sequences.engine import SequenceEngine
from sgoif.training.sequences.recorder import SequenceRecorder
from sgoif.training.sinks import ScoreSink
from sgoif.training.step import Step
from sgoif.training.step_ids import IdNotices
from sgoif.types import Columns

__all__ = ["SequenceMonitor"]

log = logging.getLogger(__name__)

_STEPS_PER_LOOK = 2  # that a look costs: about 5% of the default plan, whatever the size of the batches


class SequenceMonitor(BaseMonitor[SequenceCapture]):
    """Scores the sequences that pass through a training loop. Made by ``watch(task="sequences")``."""

    def __init__(
        self,
        loop: WatchedLoop,
        engine: SequenceEngine,
        *,
        recorder: SequenceRecorder,
        train_size: int,
        sink: ScoreSink | None = None,
        on_close: Callable[[SequenceMonitor], Any] | None = None,
    ) -> None:
        device = engine.groups.device
        hooks = SequenceCapture(loop.model, engine.layers, loop.loss, device)
        super().__init__(loop, hooks, engine.layers, sink=sink, device=device, on_close=on_close)
        self.engine, self.recorder, self.sink = engine, recorder, sink
        self._flush_at_end = recorder.flush
        self._notices = IdNotices(train_size, self._warn_once, None)
        self._measured: list[list[dict[str, Statistic]]] = []  # of this step, until all processes take it in
        self._num_sequences = 0  # of this step
        self.compared = ComparedLosses()

    def step(
        self,
        ids: Any,
        targets: Any,
        *,
        grad_factor: float | Tensor | None = None,
        accumulate: float | Tensor | None = None,
        is_last: bool | None = None,
        weights: Tensor | None = None,
        position_ids: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> Step:
        """Surround the forward and backward pass of one (micro-)batch.

        Args:
            ids: one per sequence, ints or strings: of packed rows, those of their sequences in order.
            targets: the labels as the model is given them, ``[B, T]``, -100 where no token is to be predicted.
            grad_factor: what the summed losses of the tokens are divided by, where that is not the number of tokens of
                this micro-batch: ``num_items_in_batch`` of Transformers, for example.
            accumulate: as in :meth:`BaseMonitor.step`.
            is_last: as in :meth:`BaseMonitor.step`.
            weights: not supported.
            position_ids: ``[B, T]``, of packed sequences only: each begins where they are 0.
            cu_seqlens: cumulative lengths of the sequences packed into one row, in place of ``position_ids``.
        """
        if weights is not None:
            raise SgoifError("task='sequences' has no weights of examples; leave weights= out.")
        if position_ids is not None and cu_seqlens is not None:
            raise SgoifError("pass position_ids= or cu_seqlens= for packed sequences, not both.")
        self._prepare_step()
        batch = targets
        if isinstance(targets, Tensor) and targets.dim() == 2 and not targets.is_floating_point() and self.is_on:
            segments = Segments.from_lengths(cu_seqlens) if cu_seqlens is not None else None
            segments = Segments.from_positions(position_ids) if position_ids is not None else segments
            batch = SequenceBatch(next_tokens(targets, is_causal=self.engine.is_causal), segments)
        return Step(self, ids, batch, grad_factor, accumulate, is_last, None)

    def _check_targets(self, targets: Any) -> None:
        if isinstance(targets, SequenceBatch):
            shape = None if targets.segments is None else targets.segments.shape
            if shape is not None and shape != tuple(targets.targets.shape):
                raise SgoifError(f"labels have shape {tuple(targets.targets.shape)}, but the packed batch {shape}.")
            return
        kind = f"a tensor of shape {tuple(targets.shape)}" if isinstance(targets, Tensor) else type(targets).__name__
        raise SgoifError(f"step() needs the labels of the sequences as whole numbers [B, T], got {kind}.")

    def _leave(self, ids: Any, targets: Any) -> None:
        seen = self._seen.take()
        self._num_sequences += len(targets)
        kept = self._read_ids(ids, len(targets))
        self._check_loss()
        with torch.no_grad():
            scores = self.engine.score(seen.calls) if self.engine.is_ready else None
            if kept is not None:
                self.recorder.add(self.step_count, kept, seen.losses, seen.num_tokens, scores)
            self._unaccounted = 0
            if self.governor.plan.is_observe(self.step_count) or scores is None:
                with self.governor.timer.part("curvature"):
                    self._measured.append(self.engine.measure(seen.calls))
                    if self.peers.is_alone:
                        self._absorb()

    def _absorb(self) -> None:
        measured, self._measured = self._measured, []
        for each in measured:
            self.engine.absorb(each)

    def _check_loss(self) -> None:
        """Is the gradient at the logits what the declared loss says? Later steps are compared when visits are read."""
        if self._seen.is_checked:
            try:
                with torch.no_grad():
                    self._seen.note_loss()
            except Exception as error:  # what only warns costs no visit
                log.debug("the loss of a step could not be compared: %s", error)
            return
        try:
            self._seen.is_checked = self._seen.check_loss()
        except HeadError as error:
            if not self._may_raise:
                self._switch_off(error)
            raise
        if self._seen.is_unproven:
            self._warn_once(
                "loss_not_checked",
                "the loss could not be checked against the declared one: no gradient arrived at the model's logits. "
                "Scores are right up to one factor, the same for all sequences of a step",
            )

    def _update(self, step: int) -> None:
        plan, count, self._num_sequences = self.governor.plan, self._num_sequences, 0
        is_refresh = plan.is_refresh(step)
        if not self.peers.is_alone and (is_refresh or plan.is_observe(step) or not self.engine.is_ready):
            self.peers.check_in_sync(step, len(self._measured), is_refresh)
            with self.governor.timer.part("curvature"):
                self._absorb()
        if is_refresh:
            with self.governor.timer.part("refresh"):
                self.refreshes += 1
                if self.refreshes == 1:
                    self._compare_ids()
                (draws,) = self.peers.all_reduce_max([self._count_draws(count)])  # batches may differ in size
                self.engine.refresh(self.model, self._anchor_capture, self._forward_as_trained, int(draws))
                self._flush()
                self._decide_plan(step)
            if self.engine.lacks_moments and self._steps_here > 1:  # the optimiser steps after the first look
                self._warn_once(
                    "no_moments",
                    "curvature='adam' found no second moments, so that scores have no curvature: the optimiser that "
                    "watch() was given has not stepped. Pass the one that trains the model",
                )

    def _compare_ids(self) -> None:
        """Raise in all processes where some have integers as ids and others strings: those are no ids of one run."""
        if not self.peers.is_alone and all(self.peers.all_reduce_max([self._ids.kind == kind for kind in "iU"])):
            raise RuntimeError(
                "some processes have integers as ids and others strings; give all of them ids of one type."
            )

    def _count_draws(self, trained: int) -> int:
        """How many evaluation sequences to look at after a step: more in large steps, up to what is averaged over.

        Not by the steps since the last look: the governor looks more rarely to save time.
        """
        paid = min(_STEPS_PER_LOOK * trained, AVERAGED * len(self.engine.groups))
        return max(self.governor.plan.examples_per_refresh, paid)

    def flush(self) -> None:
        """Record the visits so far; that takes no other process."""
        self._flush()

    def _flush(self) -> None:
        self.recorder.flush(self._lose, self._notices)
        self._compare_losses()
        if self.recorder.num_visits and self.recorder.num_empty == self.recorder.num_visits:
            self._warn_once(
                "no_tokens",
                f"no training sequence so far has a token to predict, for all labels are {IGNORED}; none can be judged",
            )

    def _compare_losses(self) -> None:
        try:
            self.compared += self._seen.read_losses()
        except Exception as error:
            log.debug("the losses could not be compared: %s", error)
        if told := self.compared.describe():
            self._warn_once("loss_changed", told)

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
            confidence=1.0 if self.engine.is_ready else 0.0,
            tau=float("nan"),
            overhead=self.governor.overhead,
            judged=1.0 if self.engine.is_ready else 0.0,
        )

    @property
    def _num_recorded(self) -> int:
        return self.recorder.num_visits

    @property
    def _index(self) -> IdIndex:
        return self.recorder.index

    def _task_counters(self) -> dict[str, int]:
        found = self.recorder
        return {
            "visits_not_judged": found.num_visits - found.num_judged,
            "visits_not_finite": found.num_not_finite,
            "visits_without_tokens": found.num_empty,
        }

    def _end(self, was_on: bool) -> None:
        self._notices.close(len(self.recorder.index) if self.peers.is_alone else None)  # others have seen other ids

    def weights(self, ids: Any) -> Tensor:
        """There are no weights of sequences yet."""
        raise SgoifError("weights() is there for one class per example, not for sequences.")

    def explain_tokens(self, item: Mapping[str, Any], group: str | None = None) -> Columns:
        """Which tokens of a sequence carry its harm to a group, during or after the training.

        One row per token that is to be predicted, in their order: ``position`` in the labels, ``token``, its ``loss``,
        and its share of the ``harm``, positive where learning it raises the group's loss. The shares add up to the harm
        that the sequence has with the weights as they are now, without dropout, and with the direction of the last look
        at the groups; ``Run.sequence_issues`` has the mean over the visits. Costs about five forward passes.

        Args:
            item: the sequence as the dataset has it, with ``input_ids`` and ``labels``; or a batch of one.
            group: name of the group, a key of ``anchors=``; without one, all evaluation sequences together.

        Raises:
            SgoifError: there is no such group, nothing was looked at yet, the item is not one sequence, or the model is
                sharded.
        """
        if is_sharded(*self.model.parameters()):
            raise SgoifError("the tokens of a sharded model cannot be explained; train with DistributedDataParallel.")
        direction = self.engine.direction(group)
        batch = move_to(batch_of_one(item), self._device)
        targets = next_tokens(batch["labels"], is_causal=self.engine.is_causal)
        losses, slopes = differentiate_tokens(self.model, self._forward, self.engine.layers, direction, batch, targets)
        rows = (targets[0] != IGNORED).nonzero()[:, 0]
        return {
            "position": (rows + int(self.engine.is_causal)).cpu().numpy(),
            "token": targets[0, rows].cpu().numpy(),
            "loss": losses[0, rows].double().cpu().numpy(),
            "harm": -slopes[0, rows].double().cpu().numpy(),
        }

    def snapshot(self, path: str | None = None) -> None:
        """A snapshot judges classes; of sequences there is none, which is said and stops nothing."""
        self.fault_log.note(SgoifError("a snapshot of sequences cannot be taken yet."), "no snapshot was made.")

    def _task_state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        own = {"recorder": self.recorder.state_dict(), "num_sequences": self._num_sequences}
        return {"engine": self.engine.state_dict()}, own

    def _load_task_state(self, shared: Mapping[str, Any], owned: Sequence[Mapping[str, Any]]) -> None:
        self.engine.load_state_dict(shared["engine"])
        self._num_sequences = int(owned[0]["num_sequences"]) if owned else 0
        for place, own in enumerate(owned):
            take = self.recorder.merge if place else self.recorder.load_state_dict
            take(own["recorder"])
