"""Visits on the host: blocks of packed signals as they come from the device, and as columns with one row per id."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.training.signals import SIGNALS, VisitFlag

__all__ = ["STANDARDISED", "PendingVisits", "ReadVisits", "as_ids", "read_visits"]

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
