"""Several processes, joined by a process group of our own that may fail without harm to the training.

The group is gloo's, whatever the training's backend: a collective that times out raises here and nowhere else, while
NCCL's watchdog would end the process. What is exchanged is small and goes through the host.

There is no message for trouble. A process that is in trouble leaves: its sockets close, and the next exchange of every
other process fails at once. A process that hangs or is killed is found by the group's own timeout, or by the same
closed sockets.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import timedelta
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sgoif.distributed.peers import Peers, Value
from sgoif.distributed.rounds import Rounds
from sgoif.errors import SgoifError

__all__ = ["TIMEOUT_S", "Group"]

TIMEOUT_S = 120.0  # ranks come from the same backward pass; a slow hold-out dataset is what one may have to wait for


class Group(Peers):
    """The processes of a process group.

    Args:
        ranks: of the members in the default process group, this process among them.
        timeout_s: how long an exchange may wait.

    Raises:
        SgoifError: the others did not come.
    """

    # What one process could not do the others have not got: scores would no longer be comparable.
    max_consecutive_faults = 1

    def __init__(self, ranks: Sequence[int], *, timeout_s: float = TIMEOUT_S) -> None:
        self.rank, self.size = list(ranks).index(dist.get_rank()), len(ranks)
        self._ranks = list(ranks)
        self._group: Any = None  # None once left
        try:
            # Groups of the whole world are numbered. Those of a part of it, which cannot ask the rest to take part, are
            # named by their members: a second one after the first was left would meet the addresses of the first.
            is_part = len(ranks) < dist.get_world_size()
            timeout = timedelta(seconds=timeout_s)
            self._group = dist.new_group(list(ranks), timeout, backend="gloo", use_local_synchronization=is_part)
            self.check_in_sync(0)
        except (RuntimeError, ValueError) as error:
            raise SgoifError(
                f"watch() is called by every rank at the same place, and {len(ranks)} ranks did not come together: "
                f"{str(error).splitlines()[0]}"
            ) from error

    def check_in_sync(self, *place: int) -> None:
        here = torch.tensor(place, dtype=torch.int64)
        most, least = self._largest(torch.cat([here, -here])).chunk(2)
        if not torch.equal(most, -least):
            span = f"{(-least).tolist()} to {most.tolist()} among all"
            raise RuntimeError(f"the ranks are not at the same place: {list(place)} here, {span}")

    def all_reduce_max(self, values: Sequence[float]) -> list[float]:
        found: list[float] = self._largest(torch.tensor(values, dtype=torch.float64)).tolist()
        return found

    def all_reduce_sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        packed = torch.cat([tensor.detach().flatten().to(_widest(tensors)) for tensor in tensors]).cpu()
        parts = self._sum(packed).split([tensor.numel() for tensor in tensors])
        return [part.view(tensor.shape).to(tensor) for part, tensor in zip(parts, tensors)]

    def all_gather(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        packed = torch.cat([tensor.detach().flatten(1).to(_widest(tensors)) for tensor in tensors], 1).cpu()
        parts = self._gather(packed).split([tensor[0].numel() for tensor in tensors], 1)
        return [part.reshape(-1, *tensor.shape[1:]).to(tensor) for part, tensor in zip(parts, tensors)]

    def broadcast(self, value: Value) -> Value:
        told = [value]
        dist.broadcast_object_list(told, src=self._ranks[0], group=self._members())
        return told[0]

    def abort(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            with contextlib.suppress(Exception):  # the user may have destroyed all groups already
                dist.destroy_process_group(group)

    def _largest(self, few: Tensor) -> Tensor:
        self._count(few)
        return self._rounds().largest(few)

    def _sum(self, packed: Tensor) -> Tensor:
        self._count(packed)
        return self._rounds().sum(packed)

    def _gather(self, packed: Tensor) -> Tensor:
        whole = self._rounds().gather(packed)
        self._count(whole)
        return whole

    def _rounds(self) -> Rounds:
        return Rounds(self._members(), self._ranks, self.rank)

    def _members(self) -> Any:
        if self._group is None:
            raise RuntimeError("this process has left the others")
        return self._group

    def _count(self, exchanged: Tensor) -> None:
        self.num_bytes += exchanged.nbytes


def _widest(tensors: Sequence[Tensor]) -> torch.dtype:
    """The type that holds the values of all of them, float32 at least."""
    return reduce(torch.promote_types, (tensor.dtype for tensor in tensors), torch.float32)
