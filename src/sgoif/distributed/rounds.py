"""Exchanges in ``log2 n`` rounds of messages between pairs of processes, where gloo's own go around a ring of ``n``.

A ring is as slow as it is long. At 1,000 processes a sum is 2,000 messages one after another, whatever is in them: 60
ms where a message takes 30 us, and a training step may take as long. Here it is 20, with as many bytes. All processes
end with the same numbers to the bit, since each is computed in one place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Rounds"]


@dataclass(frozen=True, slots=True)
class Rounds:
    """The members of a process group; tensors lie on the host."""

    group: Any
    ranks: Sequence[int]  # in the default group, by the rank here
    rank: int  # of this process

    def largest(self, few: Tensor) -> Tensor:
        """The largest of each number. After each round a process knows of twice as many others."""
        distance = 1
        while distance < len(self.ranks):
            heard = torch.empty_like(few)
            self._swap(few, self.rank + distance, heard, self.rank - distance)
            few, distance = torch.maximum(few, heard), 2 * distance
        return few

    def gather(self, rows: Tensor) -> Tensor:
        """The rows of all, one below the other by rank, ``[r, ...] -> [n r, ...]`` (Bruck et al. 1997)."""
        whole = rows.new_empty(len(self.ranks), *rows.shape)  # from this rank on, around
        whole[0], known = rows, 1
        while known < len(self.ranks):
            more = min(known, len(self.ranks) - known)
            self._swap(whole[:more], self.rank - known, whole[known : known + more], self.rank + known)
            known += more
        return whole.roll(self.rank, 0).flatten(0, 1)

    def sum(self, numbers: Tensor) -> Tensor:
        """The sum of each number, ``[N]``: halves are added until each process has a piece, and put together again.

        That is for a power of two (Rabenseifner 2004). Of each process beyond it another one takes the numbers first.
        """
        core = 1 << (len(self.ranks).bit_length() - 1)
        total = F.pad(numbers, (0, max(0, core - len(numbers))))  # a piece each, and a copy
        if self.rank >= core:
            self._send(total, self.rank - core)
            self._receive(total, self.rank - core)
            return total[: len(numbers)]
        is_doubled = self.rank + core < len(self.ranks)
        if is_doubled:
            heard = torch.empty_like(total)
            self._receive(heard, self.rank + core)
            total += heard
        self._sum_by_halves(total, core)
        if is_doubled:
            self._send(total, self.rank + core)
        return total[: len(numbers)]

    def _sum_by_halves(self, total: Tensor, core: int) -> None:
        piece, swaps, distance = total, [], core // 2
        while distance:
            partner = self.rank ^ distance
            halves = piece.tensor_split(2)
            mine, other = halves if self.rank < partner else reversed(halves)
            heard = torch.empty_like(mine)
            self._swap(other, partner, heard, partner)
            mine += heard
            swaps.append((partner, mine, other))
            piece, distance = mine, distance // 2
        for partner, mine, other in reversed(swaps):
            self._swap(mine, partner, other, partner)

    def _swap(self, given: Tensor, to: int, heard: Tensor, source: int) -> None:
        sent = dist.isend(given, self._member(to), group=self.group)
        self._receive(heard, source)
        assert sent is not None  # None for processes that are no members
        sent.wait()

    def _send(self, given: Tensor, to: int) -> None:
        dist.send(given, self._member(to), group=self.group)

    def _receive(self, heard: Tensor, source: int) -> None:
        dist.recv(heard, self._member(source), group=self.group)

    def _member(self, rank: int) -> int:
        return self.ranks[rank % len(self.ranks)]
