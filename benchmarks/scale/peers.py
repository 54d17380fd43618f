"""Ranks that are only declared: the exchanges of a large world, counted by the code that would make them.

A declared world answers each exchange as if every other rank had given what this one gave. Nothing is sent, and what is
counted is what a real world of as many ranks counts.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

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
        self.exchanges, self.moved = Counter[str](), Counter[str]()  # how often, and bytes, by kind

    def broadcast(self, value: Value) -> Value:
        return value

    def abort(self) -> None:
        pass

    def _largest(self, few: Tensor) -> Tensor:
        self._note("small", few)
        return few

    def _sum(self, packed: Tensor) -> Tensor:
        self._note("summed", packed)
        return packed * self.size

    def _gather(self, packed: Tensor) -> Tensor:
        whole = packed.repeat(self.size, 1)
        self._note("gathered", whole)
        return whole

    def _note(self, kind: str, exchanged: Tensor) -> None:
        self.exchanges[kind] += 1
        self.moved[kind] += exchanged.nbytes
        self._count(exchanged)


class Timed(Group):
    """Real ranks, with the seconds that this one spent in exchanges, waiting included."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.seconds: list[float] = []
        self.exchanges = Counter[str]()
        super().__init__(ranks)

    def _largest(self, few: Tensor) -> Tensor:
        self.exchanges["small"] += 1
        with self._timed():
            return super()._largest(few)

    def _sum(self, packed: Tensor) -> Tensor:
        self.exchanges["summed"] += 1
        with self._timed():
            return super()._sum(packed)

    def _gather(self, packed: Tensor) -> Tensor:
        self.exchanges["gathered"] += 1
        with self._timed():
            return super()._gather(packed)

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
