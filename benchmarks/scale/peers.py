"""Ranks that are only declared: the exchanges of a large world, counted by the code that would make them.

A declared world answers each exchange as if every other rank had given what this one gave. Nothing is sent, and what is
counted is what a real world of as many ranks counts.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch.distributed as dist
from torch import Tensor

from sgoif import api
from sgoif.distributed import Group, Peers
from sgoif.distributed.peers import Value

__all__ = ["Declared", "Timed", "joined_by"]


class Declared(Group):
    """Rank 0 of a world that is not there.

    Args:
        size: how many ranks it has.
    """

    def __init__(self, size: int) -> None:
        self.rank, self.size = 0, size
        self.exchanges = Counter[str]()

    def tell(self, value: Value) -> Value:
        return value

    def leave(self) -> None:
        pass

    def _reduced(self, packed: Tensor, how: Any) -> Tensor:
        self._count(packed)
        self.exchanges["reduced"] += 1
        return packed * self.size if how == dist.ReduceOp.SUM else packed

    def _gathered(self, packed: Tensor) -> Tensor:
        whole = packed.repeat(self.size, 1)
        self._count(whole)
        self.exchanges["gathered"] += 1
        return whole


class Timed(Group):
    """Real ranks, with the seconds that this one spent in exchanges, waiting included."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.seconds: list[float] = []
        self.exchanges = Counter[str]()
        super().__init__(ranks)

    def _reduced(self, packed: Tensor, how: Any) -> Tensor:
        self.exchanges["reduced"] += 1
        with self._timed():
            return super()._reduced(packed, how)

    def _gathered(self, packed: Tensor) -> Tensor:
        self.exchanges["gathered"] += 1
        with self._timed():
            return super()._gathered(packed)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        self.seconds.append(time.perf_counter() - begun)


@contextmanager
def joined_by(peers: Peers | None) -> Iterator[None]:
    """Have :func:`sgoif.watch` find these ranks; None leaves it to find its own."""
    if peers is None:
        yield
        return
    with patch.object(api, "find_peers", lambda *_, **__: peers):
        yield
