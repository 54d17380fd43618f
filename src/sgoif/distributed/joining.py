"""Finds out how a model is trained: alone, or by several processes, and whether that is a way we can watch."""

from __future__ import annotations

import torch.distributed as dist
from torch import nn

from sgoif.distributed.group import TIMEOUT_S, Group
from sgoif.distributed.peers import Peers, SingleProcess
from sgoif.distributed.sharding import check_sharding

__all__ = ["find_peers", "unwrapped"]


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module inside ``DistributedDataParallel`` or ``DataParallel``, or the model as it is."""
    inner = getattr(model, "module", None)
    if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel) and isinstance(inner, nn.Module):
        return inner
    return model


def find_peers(model: nn.Module, *, timeout_s: float = TIMEOUT_S) -> Peers:
    """Join the processes that train a model: those of its DDP group, else all of the default process group.

    A collective where there are several: every one of them calls it.

    Raises:
        SgoifError: the model is spread over processes in a way that is not supported, or the others did not come.
    """
    check_sharding(model)
    if not (dist.is_available() and dist.is_initialized()):
        return SingleProcess()
    group = getattr(model, "process_group", None) if isinstance(model, nn.parallel.DistributedDataParallel) else None
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    return SingleProcess() if len(ranks) == 1 else Group(ranks, timeout_s=timeout_s)
