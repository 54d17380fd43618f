"""Visits on the host: blocks of packed signals as they come from the device, and as columns with one row per id."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.records import SIGNALS, VisitFlag

__all__ = ["STANDARDISED", "PendingVisits", "ReadVisits", "read_visits"]

STANDARDISED = ("harm", "worst")  # full evidence: spread, extremes, latest; the others are kept as means
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

    @property
    def place(self) -> tuple[int, int]:
        """Step and micro-step."""
        return self.step, self.micro_step

    def emptied(self) -> PendingVisits:
        """The same micro-step without a visit."""
        return replace(self, ids=self.ids[:0], labels=self.labels[:0], signals=self.signals[:0], words=None)

    def without_ignored(self) -> tuple[PendingVisits, int]:
        """The visits whose label is a class, and how many were left out."""
        flags = self.signals[:, SIGNALS.index("flags")].astype(np.int64)
        kept = (flags & int(VisitFlag.IGNORED)) == 0
        if kept.all():
            return self, 0
        words = None if self.words is None else self.words[kept]
        rows = replace(self, ids=self.ids[kept], labels=self.labels[kept], signals=self.signals[kept], words=words)
        return rows, int((~kept).sum())

    def joined(self, other: PendingVisits) -> PendingVisits:
        """The same micro-step with the visits of another process, too."""
        if not len(self.ids):
            return other
        has_words = self.words is not None and other.words is not None
        return replace(
            self,
            ids=np.concatenate([self.ids, other.ids]),
            labels=np.concatenate([self.labels, other.labels]),
            signals=np.concatenate([self.signals, other.signals]),
            words=np.concatenate([self.words, other.words]) if has_words else None,
        )


@dataclass(frozen=True, slots=True)
class ReadVisits:
    """One micro-step's visits as columns, one row per id, not standardised yet."""

    ids: NDArray[Any]
    labels: NDArray[np.int64]
    columns: dict[str, NDArray[np.floating[Any]]]
    usable: NDArray[np.bool_]
    step: int
    micro_step: int
    num_visits: int  # with repeated ids
    words: NDArray[np.int64] | None

    @property
    def scores(self) -> dict[str, NDArray[np.floating[Any]]]:
        """What a step is measured by; NaN where a visit cannot be used."""
        return {name: np.where(self.usable, self.columns[name], np.nan) for name in STANDARDISED}


def read_visits(visits: PendingVisits) -> ReadVisits:
    """Make one row per id, as columns."""
    first, signals, repeated = _one_visit_per_id(visits.ids, visits.signals)
    columns: dict[str, NDArray[np.floating[Any]]] = {name: signals[:, i] for i, name in enumerate(SIGNALS)}
    flags = columns["flags"].astype(np.int64)
    flags[repeated] |= VisitFlag.REPEATED
    columns["flags"] = flags.astype(signals.dtype)
    usable = (flags & int(_SKIPPED)) == 0
    words = None if visits.words is None else visits.words[first]
    ids, labels = visits.ids[first], visits.labels[first]
    return ReadVisits(ids, labels, columns, usable, visits.step, visits.micro_step, len(visits.ids), words)


def _one_visit_per_id(
    ids: NDArray[Any], signals: NDArray[np.floating[Any]]
) -> tuple[NDArray[np.int64], NDArray[np.floating[Any]], NDArray[np.bool_]]:
    """Average the rows of ids that come several times, those with the flags of its first usable row.

    So a row that is not finite, or has no class, never enters a mean with others. Classes are those of that first row.

    Returns:
        Where that row of each id is, the id's signals, and whether it came more than once.
    """
    unique, first, inverse, counts = np.unique(ids, return_index=True, return_inverse=True, return_counts=True)
    if len(unique) == len(ids):
        return np.arange(len(ids)), signals.copy(), np.zeros(len(ids), bool)
    inverse = inverse.reshape(-1)
    flags = signals[:, SIGNALS.index("flags")].astype(np.int64)
    usable = np.flatnonzero((flags & int(_SKIPPED)) == 0)
    earliest = np.full(len(unique), len(ids))
    np.minimum.at(earliest, inverse[usable], usable)
    first = np.where(earliest < len(ids), earliest, first)
    alike = flags == flags[first][inverse]
    total, number = np.zeros((len(unique), signals.shape[1])), np.zeros(len(unique))
    np.add.at(total, inverse[alike], signals[alike])
    np.add.at(number, inverse[alike], 1)
    mean = (total / number[:, None]).astype(signals.dtype)
    for name in ("runner_up", "worst_anchor", "flags"):
        column = SIGNALS.index(name)
        mean[:, column] = signals[first, column]
    return first, mean, counts > 1
