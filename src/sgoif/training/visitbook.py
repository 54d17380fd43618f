"""Visits on their way from the device to the recorder.

They wait on the device until they are settled: standardised, in the order of their steps, and recorded. A process alone
settles at any time. Among others a step is measured by what all of them saw of it, so visits are settled when all meet,
at refreshes; what waits in between is part of the saved state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from torch import Tensor

from sgoif.distributed import Peers
from sgoif.errors import SgoifError
from sgoif.training.accounting import OUTSIDE_CLASSES, VisitCounts
from sgoif.training.ending import undisturbed
from sgoif.training.exchange import gather_scores
from sgoif.training.noticing import IdNotices
from sgoif.training.recorder import Recorder
from sgoif.training.signals import SIGNALS
from sgoif.training.targets import MixedSteps
from sgoif.training.visits import STANDARDISED, PendingVisits, read_visits
from sgoif.training.waiting import WaitingVisits

__all__ = ["VisitBook"]


class VisitBook:
    """Visits that are not recorded yet.

    Args:
        recorder: takes them in the end.
        peers: the processes that train together.
        counts: told of rows that are refused or lost on the way.
        on_error: told of what went wrong, and gives its cause.
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

    def settle(self) -> None:
        """Record everything, together with the others. Waits for the device, once."""
        if self.peers.is_alone:
            with undisturbed():
                for visits in self._take():
                    self._keep(visits, self.recorder.record)
            return
        pending = self._take()
        read = [read_visits(visits) for visits in pending]
        try:
            steps = gather_scores(self.peers, [(mine.num_visits, mine.scores) for mine in read], STANDARDISED)
        except Exception:
            self._pending = pending  # they can still be settled alone
            raise
        for mine, everyone in zip(read, steps):
            self._keep(mine, partial(self.recorder.keep, everyone=everyone))

    def settle_alone(self) -> None:
        """Record everything as it was measured so far: the others cannot be asked any more."""
        for visits in self._take():
            self._keep(visits, lambda visits: self.recorder.keep(read_visits(visits), None))

    def _keep(self, visits: Any, record: Callable[[Any], None]) -> None:
        """Record one micro-step; what fails costs that alone."""
        before = self.recorder.own_visits
        try:
            record(visits)
        except Exception as error:
            num_visits = len(visits.ids) if isinstance(visits, PendingVisits) else visits.num_visits
            self._lose(num_visits if self.recorder.own_visits == before else 0, error)

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
        """Continue where the books of some processes stood.

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
