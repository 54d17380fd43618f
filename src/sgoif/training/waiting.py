"""Visits that wait on the device for the next refresh, when all of them come to the host in one transfer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sgoif.evidence import SKETCH_BITS, as_ids
from sgoif.influence import packed_signs
from sgoif.training.visits import PendingVisits

__all__ = ["OnFailure", "WaitingVisits"]

OnFailure = Callable[[int, Exception], None]  # rows, and what became of them


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
        """Keep one micro-step's visits, with ids as :class:`sgoif.training.stepids.StepIds` gives them."""
        self._visits.append(_Visits(ids, labels, signals, step, micro_step, signs))

    def take(self, on_failure: OnFailure) -> list[PendingVisits]:
        """Bring everything to the host and forget it here.

        Where that fails, one micro-step at a time is tried, and what fails again stays behind as an empty one.

        Args:
            on_failure: told of the rows that could not be brought, and why.
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
