"""What a process asks of the others that train the same model. A process alone answers for itself.

Every method but :meth:`Peers.abort` is a collective: all processes call it, in the same order. Nothing outside of this
room and of :mod:`sgoif.training.exchange` needs to know whether there are others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

__all__ = ["Peers", "SingleProcess"]

Value = TypeVar("Value")


class Peers(ABC):
    """The processes of one training.

    Attributes:
        rank: of this process.
        size: how many there are.
        max_consecutive_faults: errors in a row that the monitor bears before it switches itself off.
        num_bytes: what was exchanged so far, in this process's buffers.
    """

    rank: int
    size: int
    max_consecutive_faults: int
    num_bytes: int = 0

    @property
    def is_alone(self) -> bool:
        """Whether there is nobody to ask."""
        return self.size == 1

    def share_of(self, positions: Tensor) -> Tensor:
        """This process's part of some work, ``[R] -> [ceil(R / size)]``.

        All parts are of one size, so that no process waits for another or passes over a collective inside the model;
        the last ones repeat the first positions. Gathered and cut to R, they are the whole in its order.

        >>> SingleProcess().share_of(torch.tensor([4, 7])).tolist()
        [4, 7]
        """
        count = -(-len(positions) // self.size)
        return positions[(self.rank * count + torch.arange(count)) % len(positions)]

    @abstractmethod
    def check_in_sync(self, *place: int) -> None:
        """Wait for all the others, and raise unless they came to the same place, told by a few whole numbers."""

    @abstractmethod
    def all_reduce_max(self, values: Sequence[float]) -> list[float]:
        """Return the largest of each value over all processes."""

    @abstractmethod
    def all_reduce_sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Add tensors of the same shapes over all processes, in one exchange."""

    @abstractmethod
    def all_gather(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Put the rows of all processes one below the other by rank, ``[n, ...] -> [size * n, ...]``, in one exchange.

        ``n`` is the same for all tensors and processes.
        """

    @abstractmethod
    def broadcast(self, value: Value) -> Value:
        """Return rank 0's value."""

    @abstractmethod
    def abort(self) -> None:
        """Take part in nothing any more; the others find out at their next exchange. Never raises."""


class SingleProcess(Peers):
    """One process.

    >>> SingleProcess().all_reduce_max([2.0])
    [2.0]
    """

    rank, size, max_consecutive_faults = 0, 1, 20

    def check_in_sync(self, *place: int) -> None:
        pass

    def all_reduce_max(self, values: Sequence[float]) -> list[float]:
        return list(values)

    def all_reduce_sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return list(tensors)

    def all_gather(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return list(tensors)

    def broadcast(self, value: Value) -> Value:
        return value

    def abort(self) -> None:
        pass
