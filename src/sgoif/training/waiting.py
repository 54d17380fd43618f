"""Visits that wait on the device for the next refresh, when all of them come to the host in one transfer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sgoif.evidence import SKETCH_BITS
from sgoif.influence import packed_signs
from sgoif.training.visits import PendingVisits, as_ids

__all__ = ["WaitingVisits"]


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

    def add(
        self, ids: Any, labels: Tensor, signals: Tensor, step: int, micro_step: int, signs: Tensor | None = None
    ) -> None:
        """Keep one micro-step's visits; ``ids`` may be a buffer that the loop fills again."""
        self._visits.append(_Visits(_kept(ids), labels, signals, step, micro_step, signs))

    def take(self) -> list[PendingVisits]:
        """Bring everything to the host and forget it here."""
        waiting, self._visits = self._visits, []
        if not waiting:
            return []
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


def _kept(ids: Any) -> Any:
    """A copy of the ids that later changes of the user's buffer do not reach, without waiting for the device."""
    if isinstance(ids, Tensor) and ids.device.type != "cpu":
        return ids.clone()
    return as_ids(ids).copy()
