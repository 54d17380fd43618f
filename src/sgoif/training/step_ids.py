"""The ids that come with a step: read before anything is scored, so that a bad batch costs itself alone.

What they show while the training goes on is warned of: training on the hold-out, and batch positions in place of ids.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sgoif.errors import SgoifError
from sgoif.evidence import as_ids

__all__ = ["IdNotices", "StepIds"]

_NAMES = {"i": "integers", "U": "strings"}
_NOT_IDS = (torch.bool, torch.complex64, torch.complex128)
_SURE = 1e-3  # chance of as much agreement between the labels of other examples
_AGREEING = 0.95  # of the labels; a few may be changed on the way
_MICRO_STEPS = 20  # after which batch positions are warned of, or after an epoch

Warn = Callable[..., None]  # a key of its own, and the sentence; logged once unless `again`, kept as last given


class StepIds:
    """Reads ids, all of one kind over a run.

    >>> ids = StepIds()
    >>> ids.read(torch.tensor([7, 3]), 2)
    array([7, 3])
    """

    def __init__(self) -> None:
        self.kind: str | None = None  # "i" or "U", of the first ids

    def read(self, ids: Any, count: int) -> Any:
        """A copy that later changes of the user's buffer do not reach; a tensor on a device stays there, unread.

        Args:
            ids: as given to ``monitor.step``.
            count: targets of the step.

        Raises:
            SgoifError: they are not one integer or string per target, or of another kind than those before.
        """
        found: Any
        if isinstance(ids, Tensor) and ids.device.type != "cpu":
            if ids.dim() != 1 or ids.is_floating_point() or ids.dtype in _NOT_IDS:
                as_ids(torch.empty(ids.shape, dtype=ids.dtype))  # says what is wrong with them
            found, kind = ids.detach().clone(), "i"
        else:
            found = as_ids(ids).copy()
            kind = found.dtype.kind
        if len(found) != count:
            raise SgoifError(f"step() got {len(found)} ids for {count} targets; pass one id per target.")
        if len(found) and self.kind is not None and kind != self.kind:
            raise SgoifError(
                f"ids were {_NAMES[self.kind]} before and are {_NAMES[kind]} in this step; keep the ids to one type."
            )
        if len(found):
            self.kind = kind
        return found


class IdNotices:
    """Looks at the ids of each micro-step, on the host.

    Args:
        train_size: number of training examples.
        warn: called with each thing that was noticed, once.
        held_ids: of the hold-out, where they may be compared with those of training examples; None where they are
            bare positions.
        held_labels: of the hold-out. Two datasets may count their examples alike, so examples with one id are taken to
            be the same only where their labels agree; None takes all ids as the user's own.
    """

    def __init__(
        self, train_size: int, warn: Warn, held_ids: Sequence[Any] | None, held_labels: NDArray[np.int64] | None = None
    ) -> None:
        self.train_size, self._warn = train_size, warn
        ids = np.empty(0, np.int64) if held_ids is None else as_ids(list(held_ids))
        order = np.argsort(ids, kind="stable")
        self._held = ids[order]
        self._labels = None if held_labels is None else held_labels[order]
        self._seen, self._agreed = np.zeros(len(ids), bool), np.zeros(len(ids), bool)
        largest = 0.5 if held_labels is None else float(np.bincount(held_labels).max() / max(len(held_labels), 1))
        self._needed = 1 if held_labels is None else math.ceil(math.log(_SURE) / math.log(min(max(largest, 0.1), 0.9)))
        self._micro_steps = self._visits = self._largest_batch = 0
        self._are_positions = True
        self._example: str | None = None  # an id of the hold-out that was trained on
        self._is_told = False

    @property
    def num_trained_on(self) -> int:
        """Hold-out examples that were trained on; 0 unless that is sure."""
        seen, agreed = int(self._seen.sum()), int(self._agreed.sum())
        return agreed if seen >= min(self._needed, len(self._held)) and agreed >= _AGREEING * max(seen, 1) else 0

    def note(self, ids: NDArray[Any], labels: NDArray[np.int64] | None) -> None:
        """Take in one micro-step's ids and given labels, ``[B]``."""
        if not len(ids):
            return
        self._note_held(ids, labels)
        self._note_positions(ids)

    def _note_held(self, ids: NDArray[Any], labels: NDArray[np.int64] | None) -> None:
        if not len(self._held) or ids.dtype.kind != self._held.dtype.kind:
            return
        place = np.minimum(np.searchsorted(self._held, ids), len(self._held) - 1)
        hit = self._held[place] == ids
        if not hit.any():
            return
        place = place[hit]
        self._seen[place] = True
        is_same = np.ones(len(place), bool)
        if self._labels is not None and labels is not None:
            is_same = self._labels[place] == labels[hit]
        self._agreed[place] = is_same
        if self._example is None:
            self._example = repr(ids[hit][0].item())
        if not self._is_told and self.num_trained_on:
            self._is_told = True
            self._tell_of_held("so far", again=False)

    def _tell_of_held(self, when: str, *, again: bool) -> None:
        self._warn(
            "trained_on_anchors",
            f"{self.num_trained_on} of {len(self._held)} hold-out examples were trained on {when} (id {self._example} "
            "for one), so they cannot tell wrong labels from right ones. Train on the other side of the split only: "
            "train_set, holdout = sgoif.split(dataset). If these are other examples that share ids, give them ids of "
            "their own.",
            again=again,
        )

    def _note_positions(self, ids: NDArray[Any]) -> None:
        self._micro_steps += 1
        self._visits += len(ids)
        self._largest_batch = max(self._largest_batch, len(ids))
        if not self._are_positions:
            return
        if ids.dtype.kind != "i" or ids.max() != len(ids) - 1 or ids.min() != 0 or len(np.unique(ids)) != len(ids):
            self._are_positions = False
            return
        is_long = self._micro_steps >= _MICRO_STEPS or self._visits >= self.train_size
        if is_long and self._micro_steps >= 2 and self.train_size > self._largest_batch:
            self._warn(
                "batch_positions",
                f"the ids of all {self._micro_steps} steps so far were 0..{self._largest_batch - 1}, the positions in "
                "a batch, so visits of different examples are added up as one. Pass the examples' own ids: "
                "sgoif.with_ids(dataset) puts them into the batches.",
            )

    def close(self, num_examples: int | None) -> None:
        """Look at the whole, at the end.

        Args:
            num_examples: distinct ids seen; None where not all are known here.
        """
        if self._is_told and self.num_trained_on:
            self._tell_of_held("in all" if num_examples is not None else "by this process", again=True)
        is_far_fewer = num_examples is not None and 2 * num_examples < self.train_size
        if is_far_fewer and self._visits >= 2 * self.train_size:
            self._warn(
                "few_ids",
                f"{self._visits} visits had {num_examples} different ids, where train_size={self.train_size}: either "
                "several examples share an id, or train_size is wrong.",
            )
