"""The host's side of a run: visits become rows for the sink and sums for the evidence.

Blocks of packed signals arrive once per refresh, in one transfer. Each step is standardised in order, repeated ids
within a step become one visit, and what is added to an example's evidence is weighted by the gate. Of the sketches only
each example's latest is kept: features move while a model trains, and late ones are comparable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.evidence import Evidence, IdIndex, LatestWords, LikelyClasses, Standardiser, WeightedMeans
from sgoif.records import ScoreBatch
from sgoif.training.signals import CLASS_SIGNALS, SIGNALS, VisitFlag
from sgoif.training.sinks import ScoreSink

__all__ = ["MEAN_SIGNALS", "PendingVisits", "Recorder", "as_ids"]

MEAN_SIGNALS = tuple(
    name for name in SIGNALS if name not in ("runner_up", "worst_anchor", "confidence", "confidence_worst", "flags")
)
_STANDARDISED = ("harm", "worst")  # full evidence: spread, extremes, latest; the others are kept as means
_SKIPPED = VisitFlag.NOT_FINITE | VisitFlag.MIXED


@dataclass(frozen=True, slots=True)
class PendingVisits:
    """One micro-step's visits, still to be recorded."""

    ids: NDArray[Any]
    labels: NDArray[np.int64]
    signals: NDArray[np.floating[Any]]  # [B, len(SIGNALS)]
    step: int
    micro_step: int
    words: NDArray[np.int64] | None = None  # sketches of what the model saw, [B, 4]


class Recorder:
    """Turns packed signals into visits and evidence.

    Args:
        num_classes: how many classes labels may name.
        train_size: examples per epoch.
        sink: where visits go; None keeps the evidence only.
        attempt: how often the run was resumed before.
        rank: of this process.
    """

    def __init__(
        self, num_classes: int, train_size: int, sink: ScoreSink | None, *, attempt: int = 0, rank: int = 0
    ) -> None:
        self.train_size, self.sink, self.attempt, self.rank = train_size, sink, attempt, rank
        self.index = IdIndex()
        self.evidence = Evidence(_STANDARDISED, num_classes)
        self.means = _Means(MEAN_SIGNALS)
        self.likely = LikelyClasses(num_classes)
        self.likeness = LatestWords()
        self.standardisers = {name: Standardiser() for name in _STANDARDISED}
        self.given = np.zeros(0, np.int64)  # last given label of each row
        self.num_visits = 0
        self.last_step = -1
        self.flag_counts = {flag.name: 0 for flag in VisitFlag if flag.name and flag}

    def record(self, visits: PendingVisits) -> None:
        """Take in one micro-step."""
        first, signals, repeated = _one_visit_per_id(visits.ids, visits.signals)
        ids, labels = visits.ids[first], visits.labels[first]
        columns: dict[str, NDArray[np.floating[Any]]] = {name: signals[:, i] for i, name in enumerate(SIGNALS)}
        flags = columns["flags"].astype(np.int64)
        flags[repeated] |= VisitFlag.REPEATED
        columns["flags"] = flags.astype(signals.dtype)
        usable = (flags & int(_SKIPPED)) == 0
        for name in _STANDARDISED:
            given = np.where(usable, columns[name], np.nan)
            columns[f"{name}_std"] = self.standardisers[name].apply(given)
        rows = self.index.add(ids)
        self._accumulate(rows, labels, columns, usable, visits.step)
        if visits.words is not None:
            words = visits.words[first]
            is_sketched = usable & words.any(1)
            self.likeness.keep(rows[is_sketched], words[is_sketched])
        for flag in VisitFlag:
            if flag.name and flag:
                self.flag_counts[flag.name] += int(((flags & int(flag)) != 0).sum())
        epoch = self.num_visits // max(self.train_size, 1)
        self.num_visits += len(visits.ids)
        self.last_step = max(self.last_step, visits.step)
        if self.sink is not None:
            self.sink.write(
                ScoreBatch(ids, labels, visits.step, epoch, self.attempt, self.rank, visits.micro_step, columns)
            )

    def _accumulate(
        self,
        rows: NDArray[np.int64],
        labels: NDArray[np.int64],
        columns: Mapping[str, NDArray[np.floating[Any]]],
        usable: NDArray[np.bool_],
        step: int,
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
        self.means.add(rows, columns, trust["confidence"])
        self.likely.add(rows, columns["p_given"], columns["margin"], columns["runner_up"], trust["confidence"])
        raw = np.stack([columns[name] for name in _STANDARDISED], 1).astype(np.float64)
        values = np.stack([columns[f"{name}_std"] for name in _STANDARDISED], 1)
        weights = np.stack([trust["confidence"], trust["confidence_worst"]], 1)
        suggested = np.where(usable, columns["worst_anchor"], -1).astype(np.int64)
        self.evidence.add(rows, values, weights, suggested, attempt=self.attempt, step=step, raw=raw)

    @property
    def bytes_per_example(self) -> int:
        """Memory that an example takes for good, integer ids: evidence, means, label, sketch, id and row."""
        one = Evidence(self.evidence.signals, self.evidence.votes.num_classes, num_rows=1).state_dict()
        evidence = sum(value.nbytes for value in one.values() if isinstance(value, np.ndarray) and len(value) == 1)
        return int(evidence + 8 * (len(self.means.signals) + 2) + self.likeness.words(1).nbytes + 3 * 8)

    def state_dict(self) -> dict[str, Any]:
        """All that later visits add to."""
        return {
            "ids": self.index.ids,
            "given": self.given[: len(self.index)].copy(),
            "evidence": self.evidence.state_dict(),
            "means": self.means.state_dict(),
            "likely": self.likely.state_dict(),
            "likeness": self.likeness.words(len(self.index)).copy(),
            "standardisers": {name: item.state_dict() for name, item in self.standardisers.items()},
            "num_visits": self.num_visits,
            "attempt": self.attempt,
            "last_step": self.last_step,
            "flag_counts": dict(self.flag_counts),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue a run; its visits from here on belong to the next attempt."""
        self.index = IdIndex(state["ids"]) if len(state["ids"]) else IdIndex()
        self.given = np.array(state["given"])
        self.evidence.load_state_dict(state["evidence"])
        self.means.load_state_dict(state["means"])
        if "likely" in state:  # states from before it have none
            self.likely.load_state_dict(state["likely"])
        self.likeness = LatestWords(state.get("likeness"))  # states from before it have none
        for name, item in self.standardisers.items():
            item.load_state_dict(state["standardisers"][name])
        self.num_visits, self.attempt = int(state["num_visits"]), int(state["attempt"]) + 1
        self.last_step = int(state["last_step"])
        self.flag_counts = dict(state["flag_counts"])


class _Means:
    """Means of all signals, those about the given class apart: a soft target's visit adds to the others only."""

    def __init__(self, signals: Sequence[str]) -> None:
        self.signals = tuple(signals)
        self._parts = {
            "always": WeightedMeans([name for name in signals if name not in CLASS_SIGNALS]),
            "by_class": WeightedMeans([name for name in signals if name in CLASS_SIGNALS]),
        }

    def add(self, rows: NDArray[np.int64], columns: Mapping[str, NDArray[Any]], weight: NDArray[Any]) -> None:
        for part in self._parts.values():  # each passes over visits with a value that is not finite
            part.add(rows, np.stack([columns[name] for name in part.signals], 1), weight)

    def mean(self, signal: str) -> NDArray[np.float64]:
        return self._parts["by_class" if signal in CLASS_SIGNALS else "always"].mean(signal)

    def state_dict(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self._parts.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, part in self._parts.items():
            part.load_state_dict(state[name])


def as_ids(ids: Any) -> NDArray[Any]:
    """The user's ids as an array: ints or strings, from a tensor, an array or a sequence."""
    if hasattr(ids, "detach"):
        ids = ids.detach().cpu().numpy()
    return np.asarray(ids)


def _one_visit_per_id(
    ids: NDArray[Any], signals: NDArray[np.floating[Any]]
) -> tuple[NDArray[np.int64], NDArray[np.floating[Any]], NDArray[np.bool_]]:
    """Average the rows of ids that come several times; classes and flags are taken from the first of them.

    Returns:
        Where each id comes first, its signals, and whether it came more than once.
    """
    unique, first, inverse, counts = np.unique(ids, return_index=True, return_inverse=True, return_counts=True)
    if len(unique) == len(ids):
        return np.arange(len(ids)), signals.copy(), np.zeros(len(ids), bool)
    total = np.zeros((len(unique), signals.shape[1]))
    np.add.at(total, inverse.reshape(-1), signals)
    mean = (total / counts[:, None]).astype(signals.dtype)
    for name in ("runner_up", "worst_anchor", "flags"):
        column = SIGNALS.index(name)
        mean[:, column] = signals[first, column]
    return first, mean, counts > 1
