"""What visits of tags add up to, on the host: one row per pair worth keeping, and counts of all the others.

A pair is kept from the first visit in which it was noticed, so an example has as many rows as it has tags, and of the
absent ones those that were ever among the few that the model most believed in. Nothing is kept per visit: a training
with a thousand tags would write a thousand rows an example.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sgoif.evidence import IdIndex, WeightedMeans, as_ids
from sgoif.records import TAG_SIGNALS
from sgoif.tasks.multilabel import bits_of
from sgoif.training.recorder import OnFailure
from sgoif.training.step_ids import IdNotices

__all__ = ["MultilabelRecorder"]


@dataclass(frozen=True, slots=True)
class _Visits:
    ids: Any
    packed: Tensor  # of MultilabelEngine.score, [B, W, 2 + S]
    counts: Tensor  # absent and present tags of each example, [B, 2]
    confidence: Tensor


class MultilabelRecorder:
    """Gate-weighted means of every kept pair's signals."""

    def __init__(self, num_tags: int) -> None:
        self.num_tags = num_tags
        self.examples, self._pairs = IdIndex(), IdIndex()
        self._means = WeightedMeans(TAG_SIGNALS)
        self._bits = np.zeros(0, np.int8)  # as last given
        self._visits, self._mass = np.zeros(0, np.int64), np.zeros(0)  # of a pair
        self._counts = np.zeros((0, 2), np.int64)  # absent and present tags of an example, as last given
        self._seen, self._trust = np.zeros(0, np.int64), np.zeros(0)  # visits of an example
        self.num_visits = self.num_not_finite = 0
        self._waiting: list[_Visits] = []

    def add(self, ids: Any, packed: Tensor, targets: Tensor, confidence: Tensor) -> None:
        """Keep one micro-step's visits on the device until :meth:`flush`; ids are the caller's own copy."""
        present, absent = bits_of(targets)
        counts = torch.stack([absent.sum(1), present.sum(1)], 1)
        self._waiting.append(_Visits(ids, packed, counts, confidence.clone()))

    def flush(self, on_failure: OnFailure | None = None, notices: IdNotices | None = None) -> None:
        """Bring everything to the host and add it up; what fails costs its own micro-step.

        ``on_failure`` is called with the number of rows that could not be added, and why; without it, they raise.
        """
        waiting, self._waiting = self._waiting, []
        for item in waiting:
            before = self.num_visits
            try:
                packed, counts = item.packed.cpu().double().numpy(), item.counts.cpu().numpy()
                ids = as_ids(item.ids)
                self._add_up(ids, packed, counts, float(item.confidence))
                if notices is not None:
                    notices.note(ids, None)
            except Exception as error:
                if on_failure is None:
                    raise
                on_failure(len(item.packed) if self.num_visits == before else 0, error)

    def _add_up(
        self, ids: NDArray[Any], packed: NDArray[np.float64], counts: NDArray[np.int64], confidence: float
    ) -> None:
        rows = self.examples.add(ids)
        self._counts, self._seen, self._trust = (
            _grow(array, len(self.examples)) for array in (self._counts, self._seen, self._trust)
        )
        self._counts[rows] = counts
        np.add.at(self._seen, rows, 1)
        np.add.at(self._trust, rows, confidence)
        self.num_visits += len(ids)
        who, slot = np.nonzero(packed[:, :, 0] >= 0)
        chosen = packed[who, slot]
        is_finite = np.isfinite(chosen).all(1)
        self.num_not_finite += int((~is_finite).sum())
        if not confidence > 0 or not is_finite.any():
            return
        rows, chosen = rows[who[is_finite]], chosen[is_finite]
        pairs = self._pairs.add(rows * self.num_tags + chosen[:, 0].astype(np.int64))
        self._bits, self._visits, self._mass = (
            _grow(array, len(self._pairs)) for array in (self._bits, self._visits, self._mass)
        )
        self._means.add(pairs, chosen[:, 2:], np.full(len(pairs), confidence))
        self._bits[pairs] = chosen[:, 1].astype(np.int8)
        np.add.at(self._visits, pairs, 1)
        np.add.at(self._mass, pairs, confidence)

    @property
    def num_pairs(self) -> tuple[int, int]:
        """All absent and all present pairs of the examples seen, kept or not."""
        absent, present = self._counts[: len(self.examples)].sum(0)
        return int(absent), int(present)

    def tags(self) -> dict[str, NDArray[Any]]:
        """One row per kept pair."""
        count, keys = len(self._pairs), self._pairs.ids
        ids = np.asarray(self.examples.ids)
        visits = self._visits[:count]
        table: dict[str, NDArray[Any]] = {
            "id": ids[keys // self.num_tags] if count else ids[:0],
            "tag": keys % self.num_tags,
            "given": self._bits[:count].astype(bool),
            "n_visits": visits,
            "confidence": self._mass[:count] / np.maximum(visits, 1),
        }
        return table | {name: self._means.mean(name)[:count] for name in TAG_SIGNALS}

    def example_rows(self) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]]]:
        """The example of each kept pair by row, and one row per example: visits, and how many tags it has and lacks."""
        count = len(self.examples)
        seen = self._seen[:count]
        table: dict[str, NDArray[Any]] = {
            "id": np.asarray(self.examples.ids),
            "n_visits": seen,
            "confidence": self._trust[:count] / np.maximum(seen, 1),
            "num_present": self._counts[:count, 1],
            "num_absent": self._counts[:count, 0],
        }
        return self._pairs.ids // self.num_tags, table

    def state_dict(self) -> dict[str, Any]:
        """All that later visits add to."""
        self.flush()
        ids = {"examples": self.examples.ids, "pairs": self._pairs.ids}
        counts = {"num_visits": self.num_visits, "num_not_finite": self.num_not_finite}
        arrays = {name: getattr(self, name).copy() for name in _ARRAYS}
        return {**ids, "means": self._means.state_dict(), **arrays, **counts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where another recorder stood."""
        self.examples, self._pairs = (
            IdIndex(state[name]) if len(state[name]) else IdIndex() for name in ("examples", "pairs")
        )
        self._means.load_state_dict(state["means"])
        for name in _ARRAYS:
            setattr(self, name, np.array(state[name]))
        self.num_visits, self.num_not_finite = int(state["num_visits"]), int(state["num_not_finite"])


_ARRAYS = ("_bits", "_visits", "_mass", "_counts", "_seen", "_trust")


def _grow(array: NDArray[Any], size: int) -> NDArray[Any]:
    """The array with room for ``size`` rows, doubled where it has not, so that growing costs little."""
    if size <= len(array):
        return array
    more = np.zeros((max(size, 2 * len(array)) - len(array), *array.shape[1:]), array.dtype)
    return np.concatenate([array, more])
