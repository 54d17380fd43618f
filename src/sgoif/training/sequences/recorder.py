"""What visits of sequences add up to, on the host: one row per sequence, and one per sequence and group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sgoif.evidence import IdIndex, as_ids
from sgoif.evidence.ids import grow_rows
from sgoif.training.ending import defer_sigterm
from sgoif.training.recorder import OnFailure
from sgoif.training.sequences.visit_log import VisitLog
from sgoif.training.step_ids import IdNotices
from sgoif.types import Columns

__all__ = ["SequenceRecorder"]

_ADDED = ("_visits", "_judged", "_loss", "_weights", "_sums")
_STEPS = ("_first_step", "_last_step")  # by which the first and the last of several processes' visits are known
_ARRAYS = (*_ADDED, "_tokens", "_first", "_last", *_STEPS)
_COUNTS = ("num_visits", "num_not_finite", "num_empty")


@dataclass(frozen=True, slots=True)
class _Visits:
    step: int
    ids: Any
    packed: Tensor  # loss per token, tokens, then of SequenceEngine.score; [S, 2 + 2K]


class SequenceRecorder:
    """Means over the visits of every sequence; those of its scores weigh visits by the square of the step.

    Scores sharpen as the model learns: of wrong completions among near intents (Banking77, 20%) the plain mean over six
    epochs finds 28 AP, the weighted one 43, the last visit alone 42. Weights by the step are the same in every process.

    A visit before the first look at the groups has a loss and no scores; one without a token to predict has neither.

    Args:
        groups: the share of each in all evaluation sequences, by name. A group counts in ``harm`` as much as it has
            sequences: counted alike, one of 80 would weigh as much as one of 880.
        log: where visits are written to; None for nowhere.
    """

    def __init__(self, groups: Mapping[str, float], log: VisitLog | None = None) -> None:
        self.groups, self._shares, self._log = list(groups), np.array(list(groups.values())), log
        self.index = IdIndex()
        self._visits, self._judged = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._tokens, self._loss = np.zeros(0, np.int64), np.zeros(0)
        self._first, self._last = np.zeros(0), np.zeros(0)
        self._first_step, self._last_step = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._sums, self._weights = np.zeros((0, 2 * len(self.groups))), np.zeros(0)
        self.num_visits = self.num_not_finite = self.num_empty = 0
        self._waiting: list[_Visits] = []

    @property
    def num_judged(self) -> int:
        """Visits with scores."""
        return int(self._judged.sum())

    def add(self, step: int, ids: Any, losses: Tensor, num_tokens: Tensor, scores: Tensor | None) -> None:
        """Keep one micro-step's visits on the device until :meth:`flush`; ids are the caller's own copy."""
        tokens = num_tokens.to(losses.dtype)
        if scores is None:
            scores = losses.new_full((len(losses), self._sums.shape[1]), torch.nan)
        mean = losses / tokens.clamp_min(1)
        self._waiting.append(
            _Visits(step, ids, torch.cat([mean[:, None], tokens[:, None], scores.to(losses.dtype)], 1))
        )

    def flush(self, on_failure: OnFailure | None = None, notices: IdNotices | None = None) -> None:
        """Bring everything to the host and add it up; what fails costs its own micro-step.

        ``on_failure`` is called with the number of rows that could not be added, and why; without it, they raise.
        """
        with defer_sigterm():
            self._flush(on_failure, notices)

    def _flush(self, on_failure: OnFailure | None, notices: IdNotices | None) -> None:
        waiting, self._waiting = self._waiting, []
        failed: Exception | None = None
        for item in waiting:
            before = self.num_visits
            try:
                ids, packed = as_ids(item.ids), item.packed.cpu().double().numpy()
                self.add_up(np.full(len(ids), item.step), ids, packed)
                if self._log is not None:
                    self._log.add(item.step, ids, packed)
                if notices is not None:
                    notices.note(ids, None)
            except Exception as error:
                if on_failure is None:
                    failed = error
                    continue
                on_failure(len(item.packed) if self.num_visits == before else 0, error)
        try:
            if self._log is not None:
                self._log.write()
        except Exception as error:
            if on_failure is not None:
                on_failure(0, error)
            else:
                failed = error
        if failed is not None:
            raise failed

    def _find_rows(self, ids: NDArray[Any]) -> NDArray[np.int64]:
        rows = self.index.add(ids)
        for name in _ARRAYS:
            setattr(self, name, grow_rows(getattr(self, name), len(self.index)))
        return rows

    def add_up(self, steps: NDArray[np.int64], ids: NDArray[Any], packed: NDArray[np.float64]) -> None:
        """Add visits in the order of their steps; columns are loss per token, tokens, and scores."""
        rows = self._find_rows(ids)
        loss, tokens, scores = packed[:, 0], packed[:, 1].astype(np.int64), packed[:, 2:]
        self.num_visits += len(ids)
        self.num_empty += int((tokens == 0).sum())
        is_sound = np.isfinite(loss) & (tokens > 0)
        is_judged = is_sound & np.isfinite(scores).all(1)
        was_scored = ~np.isnan(scores).all(1)
        self.num_not_finite += int(((tokens > 0) & (~np.isfinite(loss) | (was_scored & ~is_judged))).sum())
        sound = rows[is_sound]
        is_new = self._visits[sound] == 0
        new = np.flatnonzero(is_new)[::-1]  # of rows that are named twice the last one stays
        self._first[sound[new]], self._first_step[sound[new]] = loss[is_sound][new], steps[is_sound][new]
        self._last[sound], self._last_step[sound] = loss[is_sound], steps[is_sound]
        self._tokens[rows] = tokens
        np.add.at(self._visits, sound, 1)
        np.add.at(self._loss, sound, loss[is_sound])
        np.add.at(self._judged, rows[is_judged], 1)
        weights = (steps[is_judged] + 1.0) ** 2
        np.add.at(self._weights, rows[is_judged], weights)
        np.add.at(self._sums, rows[is_judged], weights[:, None] * scores[is_judged])

    def examples(self) -> Columns:
        """One row per sequence; NaN where it was never judged."""
        count, groups = len(self.index), len(self.groups)
        visits, judged = self._visits[:count], self._judged[:count]
        means = _divide(self._sums[:count], self._weights[:count, None])
        harm, cosines = means[:, :groups], means[:, groups:]
        is_seen, worst = visits > 0, harm.argmax(1) if count else np.zeros(0, np.int64)
        names = np.array(self.groups, object)[worst] if count else np.zeros(0, object)
        names[judged == 0] = None
        return {
            "id": np.asarray(self.index.ids),
            "n_visits": visits,
            "n_judged": judged,
            "confidence": judged / np.maximum(visits, 1),
            "num_tokens": self._tokens[:count],
            "loss": _divide(self._loss[:count], visits),
            "loss_first": np.where(is_seen, self._first[:count], np.nan),
            "loss_last": np.where(is_seen, self._last[:count], np.nan),
            "harm": harm @ self._shares,
            "worst": harm.max(1) if count else np.zeros(0),
            "worst_group": names,
            "cosine": cosines @ self._shares,
        }

    def effects(self) -> Columns:
        """One row per judged sequence and group."""
        count, groups = len(self.index), len(self.groups)
        rows = np.flatnonzero(self._judged[:count] > 0)
        means = _divide(self._sums[rows], self._weights[rows, None])
        return {
            "id": np.repeat(np.asarray(self.index.ids)[rows], groups),
            "group_name": np.tile(np.array(self.groups, object), len(rows)),
            "harm": means[:, :groups].reshape(-1),
            "cosine": means[:, groups:].reshape(-1),
        }

    def state_dict(self) -> dict[str, Any]:
        """All that later visits add to."""
        self.flush()
        counts = {name: getattr(self, name) for name in _COUNTS}
        arrays = {name: getattr(self, name)[: len(self.index)].copy() for name in _ARRAYS}
        return {"ids": self.index.ids, **arrays, **counts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where another recorder stood."""
        self.index = IdIndex(state["ids"]) if len(state["ids"]) else IdIndex()
        for name in _ARRAYS:
            setattr(self, name, np.array(state[name]))
        for name in _COUNTS:
            setattr(self, name, int(state[name]))

    def merge(self, state: Mapping[str, Any]) -> None:
        """Add what another process recorded; the first and last loss are those of the first and last step."""
        self.flush()
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + int(state[name]))
        if not len(state["ids"]):
            return
        rows = self._find_rows(as_ids(state["ids"]))
        is_seen, was_seen = state["_visits"] > 0, self._visits[rows] > 0
        is_first = is_seen & (~was_seen | (state["_first_step"] < self._first_step[rows]))
        is_last = is_seen & (~was_seen | (state["_last_step"] > self._last_step[rows]))
        for names, taken in ((("_first", "_first_step"), is_first), (("_last", "_last_step"), is_last)):
            for name in names:
                getattr(self, name)[rows[taken]] = state[name][taken]
        is_newer = is_last | ~was_seen
        self._tokens[rows[is_newer]] = state["_tokens"][is_newer]
        for name in _ADDED:
            getattr(self, name)[rows] += state[name]


def _divide(sums: NDArray[np.float64], counts: NDArray[Any]) -> NDArray[np.float64]:
    """Means; NaN where nothing was counted."""
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
