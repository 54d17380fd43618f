"""Visits on their way from the device to the recorder.

They wait on the device until they are flushed: standardised, in the order of their steps, and recorded. A process alone
flushes at any time. Among others a step is measured by what all of them saw of it, so visits are flushed when all meet,
at refreshes; what waits in between is part of the saved state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from sgoif.training.accounting import OUTSIDE_CLASSES, VisitCounts
from sgoif.training.ending import defer_sigterm
from sgoif.training.exchange import StepScores, gather_scores
from sgoif.training.recorder import OnFailure, Recorder
from sgoif.training.step_ids import IdNotices
from sgoif.training.targets import MixedSteps
from sgoif.training.visits import STANDARDISED, PendingVisits, ReadVisits, read_visits

__all__ = ["VisitBuffer", "WaitingVisits"]


class VisitBuffer:
    """Visits that are not recorded yet.

    Args:
        recorder: takes them in the end.
        peers: the processes that train together.
        counts: count the rows that are refused or lost on the way.
        on_error: called with what went wrong, and returns its cause.
    """

    def __init__(
        self, recorder: Recorder, peers: Peers, counts: VisitCounts, on_error: Callable[[Exception], str]
    ) -> None:
        self.recorder, self.peers, self._counts, self._on_error = recorder, peers, counts, on_error
        self._waiting = WaitingVisits()
        self._pending: list[PendingVisits] = []  # on the host already
        self._mixed_steps = MixedSteps()
        self.notices: IdNotices | None = None

    def add(self, ids: Any, labels: Tensor, signals: Tensor, step: int, micro_step: int, signs: Tensor | None) -> None:
        """Take one micro-step's visits, without waiting for the device; of ids that are None, the step alone."""
        if ids is None and self.peers.is_alone:
            return
        if ids is None:  # steps are measured by all processes together, so each keeps an empty one
            ids, labels, signals, signs = np.zeros(0, np.int64), labels[:0], signals[:0], None
        self._waiting.add(ids, labels, signals, step, micro_step, signs)

    @property
    def num_waiting(self) -> int:
        """Rows that are not recorded yet."""
        return self._waiting.num_visits + sum(len(visits.ids) for visits in self._pending)

    def flush(self) -> None:
        """Record everything, together with the others. Waits for the device, once."""
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
        cause = self._on_error(error)
        if isinstance(error, SgoifError):
            self._counts.refuse(rows, cause)
        else:
            self._counts.lose(rows, cause)

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


@dataclass(frozen=True, slots=True)
class _Visits:
    ids: Any
    labels: Tensor
    signals: Tensor  # [B, S]
    step: int
    micro_step: int
    signs: Tensor | None  # [B, 256]


class WaitingVisits:
    """Packed signals in the order of their steps. Adding never waits for the device; :meth:`take` does, once."""

    def __init__(self) -> None:
        self._visits: list[_Visits] = []

    @property
    def num_visits(self) -> int:
        """Rows that wait."""
        return sum(len(item.signals) for item in self._visits)

    def add(
        self, ids: Any, labels: Tensor, signals: Tensor, step: int, micro_step: int, signs: Tensor | None = None
    ) -> None:
        """Keep one micro-step's visits, with ids as :class:`sgoif.training.step_ids.StepIds` gives them."""
        self._visits.append(_Visits(ids, labels, signals, step, micro_step, signs))

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

    def _brought_alone(self, item: _Visits, on_failure: OnFailure) -> PendingVisits:
        try:
            (found,) = _brought([item])
            return found
        except Exception as error:
            on_failure(len(item.signals), error)
            nothing = np.zeros((0, item.signals.shape[1]), np.float32)
            none = np.zeros(0, np.int64)
            return PendingVisits(none, none, nothing, item.step, item.micro_step)


def _brought(waiting: list[_Visits]) -> list[PendingVisits]:
    signals = torch.cat([item.signals for item in waiting])
    labels = torch.cat([item.labels for item in waiting]).to(signals.dtype)
    # bits of the sketches travel as numbers of the signals' type: a copy leaves them as they are
    sketches = packed_signs(torch.cat([_signs_of(item) for item in waiting])).view(signals.dtype)
    packed = torch.cat([signals, labels[:, None], sketches], 1).cpu().numpy()
    width = signals.shape[1]
    words = np.ascontiguousarray(packed[:, width + 1 :]).view(np.int64)
    found, start = [], 0
    for item in waiting:
        mine = slice(start, start + len(item.signals))
        start = mine.stop
        values, given = packed[mine, :width], packed[mine, width].astype(np.int64)
        found.append(PendingVisits(as_ids(item.ids), given, values, item.step, item.micro_step, words[mine]))
    return found


def _signs_of(item: _Visits) -> Tensor:
    if item.signs is not None:
        return item.signs
    return torch.zeros(len(item.signals), SKETCH_BITS, dtype=torch.bool, device=item.signals.device)
