"""Visits that wait on the device for the next refresh, when all of them come to the host in one transfer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sgoif.training.recorder import PendingVisits, as_ids

__all__ = ["WaitingVisits"]


@dataclass(frozen=True, slots=True)
class _Visits:
    ids: Any
    labels: Tensor
    signals: Tensor  # [B, S]
    step: int
    micro_step: int


class WaitingVisits:
    """Packed signals in the order of their steps. Adding never waits for the device; :meth:`take` does, once."""

    def __init__(self) -> None:
        self._visits: list[_Visits] = []

    def add(self, ids: Any, labels: Tensor, signals: Tensor, step: int, micro_step: int) -> None:
        """Keep one micro-step's visits; ``ids`` may be a buffer that the loop fills again."""
        self._visits.append(_Visits(_kept(ids), labels, signals, step, micro_step))

    def take(self) -> list[PendingVisits]:
        """Bring everything to the host and forget it here."""
        waiting, self._visits = self._visits, []
        if not waiting:
            return []
        signals = torch.cat([item.signals for item in waiting])
        labels = torch.cat([item.labels for item in waiting]).to(signals.dtype)
        packed = torch.cat([signals, labels[:, None]], 1).cpu().numpy()
        found, start = [], 0
        for item in waiting:
            part = packed[start : start + len(item.signals)]
            start += len(part)
            given = part[:, -1].astype("int64")
            found.append(PendingVisits(as_ids(item.ids), given, part[:, :-1], item.step, item.micro_step))
        return found


def _kept(ids: Any) -> Any:
    """A copy of the ids that later changes of the user's buffer do not reach, without waiting for the device."""
    if isinstance(ids, Tensor) and ids.device.type != "cpu":
        return ids.clone()
    return as_ids(ids).copy()
