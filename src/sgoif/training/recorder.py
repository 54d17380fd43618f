"""The host's side of a run: visits become rows for the sink and sums for the evidence.

Each step is standardised in order. What is added to an example's evidence of influence is weighted by the gate; for
loss, margin and probabilities all usable visits count alike. Of the sketches only each example's latest is kept:
features move while a model trains, and late ones are comparable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.evidence import Evidence, IdIndex, LastPredictions, LatestWords, LikelyClasses, Standardiser, VisitMeans
from sgoif.records import SIGNALS, ScoreBatch, VisitFlag
from sgoif.training.exchange import StepScores
from sgoif.training.sinks import ScoreSink
from sgoif.training.visits import STANDARDISED, PendingVisits, ReadVisits, read_visits

__all__ = ["MEAN_SIGNALS", "OnFailure", "Recorder"]

OnFailure = Callable[[int, Exception], None]  # rows, and what became of them

MEAN_SIGNALS = tuple(
    name for name in SIGNALS if name not in ("runner_up", "worst_anchor", "confidence", "confidence_worst", "flags")
)


class Recorder:
    """Turns packed signals into visits and evidence.

    Args:
        num_classes: how many classes labels may name.
        train_size: examples per epoch.
        sink: where visits go; None keeps the evidence only.
        attempt: how often the run was resumed before.
        rank: of this process.
        keeps_evidence: whether visits are added up here. A process that writes its part of a run with others has no
            use for it: an example's visits are in several processes, and are added up from the run.
        temperature: by which standardised scores are bent, ``tanh(x / temperature)``; None leaves them as they are.
    """

    def __init__(
        self,
        num_classes: int,
        train_size: int,
        sink: ScoreSink | None,
        *,
        attempt: int = 0,
        rank: int = 0,
        keeps_evidence: bool = True,
        temperature: float | None = None,
    ) -> None:
        self.keeps_evidence = keeps_evidence
        self.train_size, self.sink, self.attempt, self.rank = train_size, sink, attempt, rank
        self.index = IdIndex()
        self.evidence = Evidence(STANDARDISED, num_classes)
        self.means = VisitMeans(MEAN_SIGNALS)
        self.likely = LikelyClasses(num_classes)
        self.last = LastPredictions()
        self.likeness = LatestWords()
        self.standardisers = {name: Standardiser(temperature=temperature) for name in STANDARDISED}
        self.given = np.zeros(0, np.int64)  # last given label of each row
        self.num_visits = 0  # of all processes
        self.own_visits = 0
        self.last_step = -1
        self.flag_counts = {flag.name: 0 for flag in VisitFlag if flag.name and flag}

    def record(self, visits: PendingVisits) -> None:
        """Take in one micro-step."""
        read = read_visits(visits)
        self.keep([(read, StepScores(read.num_visits, read.scores))])

    def keep(self, steps: Sequence[tuple[ReadVisits, StepScores | None]], on_failure: OnFailure | None = None) -> None:
        """Take in micro-steps, each measured by what all processes saw in it; None leaves the measure as it is.

        Args:
            steps: in their order.
            on_failure: called with the number of rows that could not be taken in, and why; what fails costs its own
                micro-step. Without it the error is raised.
        """
        kept = []
        for visits, everyone in steps:
            with _failing(on_failure, visits):
                kept.append((self._standardise(visits, everyone), everyone))
        try:
            is_added = not self.keeps_evidence or self._add_up_together([visits for visits, _ in kept])
        except Exception as error:  # some may be added up already: to try again would count them twice
            if on_failure is None:
                raise
            on_failure(sum(visits.num_visits for visits, _ in kept), error)
            return
        for visits, everyone in kept:
            with _failing(on_failure, visits):
                if not is_added:
                    self._add_up(visits)
                self._write(visits, everyone)

    def _standardise(self, visits: ReadVisits, everyone: StepScores | None) -> ReadVisits:
        columns, scores = dict(visits.columns), visits.scores
        for name in STANDARDISED:
            if everyone is not None:
                self.standardisers[name].observe(everyone.scores[name])
            columns[f"{name}_std"] = self.standardisers[name].transform(scores[name])
        return replace(visits, columns=columns)

    def _write(self, visits: ReadVisits, everyone: StepScores | None) -> None:
        flags = visits.columns["flags"].astype(np.int64)
        for flag in VisitFlag:
            if flag.name and flag:
                self.flag_counts[flag.name] += int(((flags & int(flag)) != 0).sum())
        epoch = self.num_visits // max(self.train_size, 1)
        self.last_step = max(self.last_step, visits.step)
        if self.sink is not None and len(visits.ids):
            ids, place = visits.ids, (visits.step, epoch, self.attempt, self.rank, visits.micro_step)
            self.sink.write(ScoreBatch(ids, visits.labels, *place, visits.columns))
        self.num_visits += visits.num_visits if everyone is None else everyone.num_visits
        self.own_visits += visits.num_visits

    def _add_up_together(self, steps: Sequence[ReadVisits]) -> bool:
        """Add up micro-steps without a common id in one call; False, with nothing added, where that cannot be done."""
        if len(steps) < 2 or len({visits.ids.dtype.kind for visits in steps if len(visits.ids)}) != 1:
            return False
        ids = np.concatenate([visits.ids for visits in steps if len(visits.ids)])
        if len(np.unique(ids)) < len(ids) or any(visits.words is None for visits in steps):
            return False
        try:
            self._reserve(self.index.add(ids))
        except Exception:  # then each micro-step by itself shows which one it was
            return False
        self._add_up(*(visits for visits in steps if len(visits.ids)))
        return True

    def _reserve(self, rows: NDArray[np.int64]) -> None:
        """Make room for rows, so that nothing is half added up where there is none."""
        for kept in (self.means, self.last, self.evidence):
            kept.reserve(int(rows.max()) + 1)

    def _add_up(self, *steps: ReadVisits) -> None:
        ids, labels, usable = (
            np.concatenate([getattr(visits, name) for visits in steps]) for name in ("ids", "labels", "usable")
        )
        if not len(ids):
            return
        names = steps[0].columns
        columns = {name: np.concatenate([visits.columns[name] for visits in steps]) for name in names}
        rows = self.index.add(ids)
        self._accumulate(rows, labels, columns, usable)
        words = [visits.words for visits in steps if visits.words is not None]
        if words:
            joined = np.concatenate(words)
            is_sketched = usable & joined.any(1)
            self.likeness.keep(rows[is_sketched], joined[is_sketched])

    def _accumulate(
        self,
        rows: NDArray[np.int64],
        labels: NDArray[np.int64],
        columns: Mapping[str, NDArray[np.floating[Any]]],
        usable: NDArray[np.bool_],
    ) -> None:
        if len(self.index) > len(self.given):
            grown = np.full(max(len(self.index), 2 * len(self.given)), -1, np.int64)
            grown[: len(self.given)] = self.given
            self.given = grown
        has_class = labels >= 0  # mixed and soft targets name none, and take away none that was given before
        self.given[rows[has_class]] = labels[has_class]
        trust = {
            name: np.where(usable, np.nan_to_num(columns[name]), 0.0).clip(0, 1)
            for name in ("confidence", "confidence_worst")
        }
        self.means.add(rows, columns, usable, trust["confidence"])
        predicted = columns["p_given"], columns["margin"], columns["runner_up"]
        self.likely.add(rows, *predicted, usable=usable)
        self.last.keep(rows, *predicted, usable=usable)
        raw = np.stack([columns[name] for name in STANDARDISED], 1).astype(np.float64)
        values = np.stack([columns[f"{name}_std"] for name in STANDARDISED], 1)
        weights = np.stack([trust["confidence"], trust["confidence_worst"]], 1)
        suggested = np.where(usable, columns["worst_anchor"], -1).astype(np.int64)
        self.evidence.add(rows, values, weights, suggested, raw=raw)

    def shared_state(self) -> dict[str, Any]:
        """What all processes have alike: how scores are measured, and how far the run is."""
        return {
            "standardisers": {name: item.state_dict() for name, item in self.standardisers.items()},
            "num_visits": self.num_visits,
            "attempt": self.attempt,
            "last_step": self.last_step,
        }

    def own_state(self) -> dict[str, Any]:
        """What this process saw and later visits add to."""
        return {
            "rank": self.rank,
            "own_visits": self.own_visits,
            "keeps_evidence": self.keeps_evidence,
            "ids": self.index.ids,
            "given": self.given[: len(self.index)].copy(),
            "evidence": self.evidence.state_dict(),
            "means": self.means.state_dict(),
            "likely": self.likely.state_dict(),
            "last": self.last.state_dict(len(self.index)),
            "likeness": self.likeness.words(len(self.index)).copy(),
            "flag_counts": dict(self.flag_counts),
        }

    def load_shared(self, state: Mapping[str, Any]) -> None:
        """Continue a run; its visits from here on belong to the next attempt."""
        for name, item in self.standardisers.items():
            item.load_state_dict(state["standardisers"][name])
        self.num_visits, self.attempt = int(state["num_visits"]), int(state["attempt"]) + 1
        self.last_step = int(state["last_step"])
        self.flag_counts, self.own_visits = dict.fromkeys(self.flag_counts, 0), 0

    def load_own(self, state: Mapping[str, Any]) -> None:
        """Take over from a process. Evidence goes to the process of the same rank alone; counts can be added up."""
        for name, count in state["flag_counts"].items():
            self.flag_counts[name] = self.flag_counts.get(name, 0) + count
        self.own_visits += int(state["own_visits"])
        if state["rank"] != self.rank:
            return
        has_files = self.sink is not None and self.sink.url is not None and self.sink.keep_visits != "none"
        if has_files and not state["keeps_evidence"]:
            self.keeps_evidence = False  # several processes wrote visits, and from those the run is added up
        if self.keeps_evidence:
            self._load_evidence(state)

    def _load_evidence(self, state: Mapping[str, Any]) -> None:
        self.index = IdIndex(state["ids"]) if len(state["ids"]) else IdIndex()
        self.given = np.array(state["given"])
        self.evidence.load_state_dict(state["evidence"])
        self.means.load_state_dict(state["means"])
        self.likely.load_state_dict(state["likely"])
        self.last.load_state_dict(state["last"])
        self.likeness = LatestWords(state["likeness"])


@contextmanager
def _failing(on_failure: OnFailure | None, visits: ReadVisits) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if on_failure is None:
            raise
        on_failure(visits.num_visits, error)
