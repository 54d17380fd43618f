"""Finds out how a model is trained: alone, or by several processes, and whether that is a way we can watch.

FSDP2 keeps parameters in pieces. Inside a forward pass a layer's parameters are whole, so captures are what they are
elsewhere. A pass of our own stands between the training's backward pass and the optimiser's step: parameters that it
left whole would be those of the step before in the next forward pass, so they are put back into pieces.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from sgoif.distributed.group import TIMEOUT_S, Group
from sgoif.distributed.peers import Peers, SingleProcess
from sgoif.errors import SgoifError

__all__ = ["find_peers", "gather_pieces", "is_sharded", "keep_sharded", "unwrap"]


def unwrap(model: nn.Module) -> nn.Module:
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
    _check_sharding(model)
    if not (dist.is_available() and dist.is_initialized()):
        return SingleProcess()
    group = getattr(model, "process_group", None) if isinstance(model, nn.parallel.DistributedDataParallel) else None
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    return SingleProcess() if len(ranks) == 1 else Group(ranks, timeout_s=timeout_s)


def is_sharded(*values: Tensor) -> bool:
    """Tell whether some of the parameters are pieces (DTensor)."""
    return any(hasattr(value, "device_mesh") for value in values)


def gather_pieces(value: Tensor) -> Tensor:
    """A tensor that is whole, of one that lies in pieces: then a collective of all processes."""
    gather = getattr(value, "full_tensor", None)
    whole: Tensor = value if gather is None else gather()
    return whole


def _check_sharding(model: nn.Module) -> None:
    """Raise unless every parameter is whole, or in pieces by ``fully_shard`` over all ranks, which all see other data.

    Raises:
        SgoifError: naming what was found.
    """
    pieces: dict[str, Any] = {name: value for name, value in model.named_parameters() if is_sharded(value)}
    old = [name for name, part in model.named_modules() if type(part).__name__ == "FullyShardedDataParallel"]
    if old:
        raise _refusal(f"FullyShardedDataParallel ({old[0] or 'the model'}) flattens its parameters; use fully_shard")
    if pieces and not _fsdp_modules(model):
        raise _refusal(
            f"{next(iter(pieces))!r} is a DTensor that no fully_shard made: tensor parallel is not supported"
        )
    for name, value in pieces.items():
        mesh = value.device_mesh
        if mesh.ndim > 1 or mesh.size() != dist.get_world_size():
            raise _refusal(
                f"{name!r} lies on a mesh of shape {tuple(mesh.shape)} among {dist.get_world_size()} ranks; supported "
                "is one axis over all of them, not yet HSDP or tensor parallel"
            )


@contextmanager
def keep_sharded(model: nn.Module) -> Iterator[None]:
    """Put parameters back into pieces after a pass of our own; nothing for a model that has none."""
    try:
        yield
    finally:
        for part in _fsdp_modules(model):
            part.reshard()


def _fsdp_modules(model: nn.Module) -> list[Any]:
    return [part for part in model.modules() if any(kind.__name__ == "FSDPModule" for kind in type(part).__mro__)]


def _refusal(reason: str) -> SgoifError:
    return SgoifError(
        f"watch() cannot see into this model: {reason}. Train with DistributedDataParallel or fully_shard to watch it, "
        "or audit the finished model in one process (sgoif.audit)."
    )
