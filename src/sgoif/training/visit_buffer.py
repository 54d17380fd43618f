"""Visits on their way from the device to the recorder.

They wait on the device, first to be scored with those of other steps, then to be flushed: standardised, in the order of
their steps, and recorded. A process alone flushes at any time. Among others a step is measured by what all of them saw
of it, so visits are flushed when all meet, at refreshes; what waits in between is part of the saved state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sgoif.distributed import Peers
from sgoif.errors import SgoifError
from sgoif.evidence import SKETCH_BITS, as_ids
from sgoif.influence import packed_signs
from sgoif.records import SIGNALS
from sgoif.training.accounting import OUTSIDE_CLASSES, VisitCounts, cause_of
from sgoif.training.ending import defer_sigterm
from sgoif.training.engine import Engine
from sgoif.training.exchange import StepScores, gather_scores
from sgoif.training.recorder import OnFailure, Recorder
from sgoif.training.scoring_queue import ScoredBatch
from sgoif.training.step_ids import IdNotices
from sgoif.training.targets import GivenLabels, MixedSteps
from sgoif.training.visits import STANDARDISED, PendingVisits, ReadVisits, read_visits

__all__ = ["VisitBuffer", "Visits", "WaitingVisits"]

_NOT_RECORDED = "visits could not be recorded; the training goes on."

Finish = Callable[[Tensor], Tensor]  # of packed signals [B, S]


class VisitBuffer:
    """Visits that are not recorded yet.

    Args:
        engine: scores them.
        recorder: takes them in the end.
        peers: the processes that train together.
        counts: count the rows that are refused or lost on the way.
        on_error: called with what went wrong and what that means, and returns its cause.
    """

    def __init__(
        self,
        engine: Engine,
        recorder: Recorder,
        peers: Peers,
        counts: VisitCounts,
        on_error: Callable[[Exception, str], str],
    ) -> None:
        self.engine, self.recorder, self.peers = engine, recorder, peers
        self._counts, self._on_error = counts, on_error
        self._waiting = WaitingVisits()
        self._pending: list[PendingVisits] = []  # on the host already
        self._mixed_steps = MixedSteps()
        self.notices: IdNotices | None = None

    def add(self, ids: Any, given: GivenLabels, step: int, micro_step: int, ticket: int, finish: Finish | None) -> None:
        """Take one micro-step's visits, without waiting for the device.

        Args:
            ids: of its examples.
            given: their labels.
            step: of the optimiser.
            micro_step: within it.
            ticket: under which the engine scores them.
            finish: what remains to be done to their signals.
        """
        self._waiting.add(Visits(ids, given.label_to_record, step, micro_step, ticket, finish))

    def add_none(self, step: int, micro_step: int) -> None:
        """Take a micro-step whose examples cannot be told: steps are measured by all processes together."""
        if not self.peers.is_alone:
            none = torch.zeros(0, dtype=torch.long, device=self.engine.holdout.device)
            self._waiting.add(Visits(np.zeros(0, np.int64), none, step, micro_step, signals=self._no_signals()))

    def _no_signals(self) -> Tensor:
        return torch.zeros(0, len(SIGNALS), device=self.engine.holdout.device, dtype=self.engine.dtype)

    def settle(self) -> list[Exception]:
        """Have all of them scored; what fails is counted as lost, and why is returned, once for each micro-step."""
        with defer_sigterm():  # between the engine and here, a batch would be in neither
            return self._settle()

    def _settle(self) -> list[Exception]:
        lost: list[Exception] = []
        failed: Exception = RuntimeError("a batch was queued and not scored")
        try:
            self.engine.settle()
        except Exception as error:
            failed = error
        scored = self.engine.take_scores()
        for visits in self._waiting.unscored():
            try:
                visits.fill(scored.get(visits.ticket, failed))
            except Exception as error:
                lost.append(error)
                self._count_lost(len(visits.labels), error, cause_of(error))
                visits.ids, visits.labels, visits.signals = np.zeros(0, np.int64), visits.labels[:0], self._no_signals()
            if visits.sketch_error is not None:
                self._on_error(visits.sketch_error, "a step's examples could not be sketched; their scores are kept.")
        return lost

    @property
    def is_settled(self) -> bool:
        """Whether all of them are scored."""
        return next(self._waiting.unscored(), None) is None

    @property
    def num_waiting(self) -> int:
        """Rows that are not recorded yet."""
        return self._waiting.num_visits + sum(len(visits.ids) for visits in self._pending)

    def flush(self) -> None:
        """Record everything, together with the others. Waits for the device, once."""
        self._settle_or_note()
        if self.peers.is_alone:
            with defer_sigterm():
                read = self._read(self._take())
                self.recorder.keep([(mine, StepScores(mine.num_visits, mine.scores)) for mine in read], self._lose)
            return
        pending = self._take()
        read = [read_visits(visits) for visits in pending]
        try:
            steps = gather_scores(self.peers, [(mine.num_visits, mine.scores) for mine in read], STANDARDISED)
        except Exception:
            self._pending = pending  # they can still be flushed alone
            raise
        self.recorder.keep(list(zip(read, steps)), self._lose)

    def flush_alone(self) -> None:
        """Record everything as it was measured so far: the others cannot be asked any more."""
        self._settle_or_note()
        self.recorder.keep([(mine, None) for mine in self._read(self._take())], self._lose)

    def _read(self, pending: Sequence[PendingVisits]) -> list[ReadVisits]:
        """Micro-steps as columns; what fails costs its own micro-step."""
        found = []
        for visits in pending:
            try:
                found.append(read_visits(visits))
            except Exception as error:
                self._lose(len(visits.ids), error)
        return found

    def _lose(self, rows: int, error: Exception) -> None:
        self._count_lost(rows, error, self._on_error(error, _NOT_RECORDED))

    def _count_lost(self, rows: int, error: Exception, cause: str) -> None:
        (self._counts.refuse if isinstance(error, SgoifError) else self._counts.lose)(rows, cause)

    def _settle_or_note(self) -> None:
        for error in self.settle():
            self._on_error(error, "visits could not be scored; the training goes on.")

    def _take(self) -> list[PendingVisits]:
        arrived = [self._sifted(visits) for visits in self._waiting.take(self._lose)]
        pending, self._pending = [*self._pending, *arrived], []
        return pending

    def _sifted(self, visits: PendingVisits) -> PendingVisits:
        """Without the rows whose label is no class, which are counted."""
        kept, num_ignored = visits.without_ignored()
        self._counts.refuse(num_ignored, OUTSIDE_CLASSES)
        self._mixed_steps.note(kept.signals[:, SIGNALS.index("flags")])
        if self.notices is not None:
            self.notices.note(kept.ids, kept.labels)
        return kept

    def waiting(self) -> list[PendingVisits]:
        """What waits, in the order of steps. It stays here, too."""
        self._settle_or_note()
        self._pending = self._take()
        return list(self._pending)

    def load(self, steps: Sequence[Mapping[str, Any]], owned: Sequence[Sequence[Mapping[str, Any]]]) -> None:
        """Continue where the buffers of some processes stood.

        Args:
            steps: micro-steps that wait in all processes.
            owned: the visits in them of each process that this one takes over from.
        """
        joined = {visits.place: visits.emptied() for visits in map(_visits, steps)}
        for visits in map(_visits, chain.from_iterable(owned)):
            if visits.place in joined:  # a process that had to give up stood elsewhere
                joined[visits.place] = joined[visits.place].joined(visits)
        self._pending = list(joined.values())

    def first_step(self, step: int) -> int:
        """The first step of which something waits; ``step`` where nothing does."""
        steps: Sequence[int] = [visits.step for visits in self._pending]
        return min([step, *steps])


def _visits(saved: Mapping[str, Any]) -> PendingVisits:
    return PendingVisits(**saved)


@dataclass(slots=True)
class Visits:
    """One micro-step's visits on the device."""

    ids: Any
    labels: Tensor
    step: int
    micro_step: int
    ticket: int = -1  # under which the engine scores them
    finish: Finish | None = None  # of their signals
    signals: Tensor | None = None  # [B, S]; None until they are scored
    signs: Tensor | None = None  # [B, 256]
    sketch_error: Exception | None = None

    def fill(self, found: ScoredBatch | Exception) -> None:
        """Take what the engine found of them; raises what kept it from that."""
        if isinstance(found, Exception):
            raise found
        self.signals = found.signals if self.finish is None else self.finish(found.signals)
        if isinstance(found.signs, Exception):
            self.sketch_error = found.signs
        else:
            self.signs = found.signs


class WaitingVisits:
    """Visits in the order of their steps. Adding never waits for the device; :meth:`take` does, once."""

    def __init__(self) -> None:
        self._visits: list[Visits] = []

    @property
    def num_visits(self) -> int:
        """Rows that wait."""
        return sum(len(item.labels) for item in self._visits)

    def unscored(self) -> Iterator[Visits]:
        """Those that wait to be scored, too."""
        return (item for item in reversed(self._visits) if item.signals is None)

    def add(self, visits: Visits) -> None:
        """Keep one micro-step's visits, with ids as :class:`sgoif.training.step_ids.StepIds` gives them."""
        self._visits.append(visits)

    def take(self, on_failure: OnFailure) -> list[PendingVisits]:
        """Bring everything to the host and forget it here.

        Where that fails, one micro-step at a time is tried, and what fails again stays behind as an empty one.

        Args:
            on_failure: called with the number of rows that could not be brought, and why.
        """
        waiting, self._visits = self._visits, []
        if not waiting:
            return []
        try:
            return _brought(waiting)
        except Exception:
            return [self._brought_alone(item, on_failure) for item in waiting]

    def _brought_alone(self, item: Visits, on_failure: OnFailure) -> PendingVisits:
        try:
            (found,) = _brought([item])
            return found
        except Exception as error:
            on_failure(len(item.labels), error)
            nothing = np.zeros((0, len(SIGNALS)), np.float32)
            none = np.zeros(0, np.int64)
            return PendingVisits(none, none, nothing, item.step, item.micro_step)


def _brought(waiting: list[Visits]) -> list[PendingVisits]:
    signals = torch.cat([item.signals for item in waiting if item.signals is not None])
    labels = torch.cat([item.labels for item in waiting]).to(signals.dtype)
    # bits of the sketches travel as numbers of the signals' type: a copy leaves them as they are
    sketches = packed_signs(torch.cat([_signs_of(item) for item in waiting])).view(signals.dtype)
    packed = torch.cat([signals, labels[:, None], sketches], 1).cpu().numpy()
    width = signals.shape[1]
    words = np.ascontiguousarray(packed[:, width + 1 :]).view(np.int64)
    found, start = [], 0
    for item in waiting:
        mine = slice(start, start + len(item.labels))
        start = mine.stop
        values, given = packed[mine, :width], packed[mine, width].astype(np.int64)
        found.append(PendingVisits(as_ids(item.ids), given, values, item.step, item.micro_step, words[mine]))
    return found


def _signs_of(item: Visits) -> Tensor:
    if item.signs is not None:
        return item.signs
    return torch.zeros(len(item.labels), SKETCH_BITS, dtype=torch.bool, device=item.labels.device)
