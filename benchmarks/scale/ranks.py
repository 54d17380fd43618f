"""Exchanges against the number of ranks: bytes and seconds of real gloo processes, bytes of declared ones.

Bytes are those of the buffers of one rank, as the code counts them; a sum is sent about twice, what is gathered once.
Seconds include the wait for the others, on a machine that has two cores for all of them.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

import sgoif
from benchmarks.scale.exchanges import exchanges_of
from benchmarks.scale.loop import Loop, Shape
from benchmarks.scale.peers import Declared, Timed
from sgoif.distributed import Peers

__all__ = ["DECLARED", "LARGE", "REAL", "TINY", "declared", "exchanged", "real"]

TINY = Shape(examples=10**6, width=64, trunk=32, batch=32)
LARGE = Shape(examples=10**9, classes=1000, width=1024, trunk=32, batch=64)  # a ViT-L's head
REAL, DECLARED = (2, 4, 8), (2, 4, 8, 64, 256, 512, 1024)
_PERIODS = 2


def declared(shape: Shape, size: int) -> dict[str, Any]:
    """What one rank of a declared world exchanges per step."""
    return {"kind": "declared", "ranks": size, "shape": asdict(shape), **exchanged(shape, Declared(size))}


def real(shape: Shape, size: int) -> dict[str, Any]:
    """What rank 0 of a real world exchanges per step, and how long it takes."""
    with tempfile.TemporaryDirectory() as folder:
        spawn(_rank, (size, folder, shape), nprocs=size)
        found: dict[str, Any] = json.loads((Path(folder) / "found.json").read_text())
    return {"kind": "real", "ranks": size, "shape": asdict(shape), **found}


def _rank(rank: int, size: int, folder: str, shape: Shape) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=size)
    peers = Timed(range(size))
    found = exchanged(shape, peers)
    found["seconds_per_exchange"] = median(peers.seconds)
    found["seconds_per_step"] = sum(peers.seconds) / found["steps"]
    if rank == 0:
        (Path(folder) / "found.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def exchanged(shape: Shape, peers: Declared | Timed) -> dict[str, Any]:
    """Whole periods of the plan, after a first one in which everything happens for the first time."""
    loop = Loop(shape, peers=peers)
    assert loop.monitor is not None
    period = loop.monitor.plan.refresh_every
    loop.run(period)
    before, exchanges, steps = peers.num_bytes, dict(peers.exchanges), _PERIODS * period
    _forget(peers)
    loop.run(steps)
    told = {name: (count - exchanges.get(name, 0)) / steps for name, count in peers.exchanges.items()}
    return {"steps": steps, "bytes_per_step": (peers.num_bytes - before) / steps, "exchanges_per_step": told}


def _forget(peers: Peers) -> None:
    if isinstance(peers, Timed):
        peers.seconds.clear()


def counted(shape: Shape, size: int) -> dict[str, Any]:
    """The same as :func:`declared` by the exchanging functions alone, for a head that would take long to train."""
    found = exchanges_of(sgoif.Plan(), shape.width + 1, shape.classes, shape.batch, size)
    told = {"bytes_per_step": sum(found.bytes.values()), "exchanges_per_step": found.count}
    return {"kind": "declared", "ranks": size, "shape": asdict(shape), **told}


def curve(real_sizes: Sequence[int], declared_sizes: Sequence[int]) -> Iterator[dict[str, Any]]:
    """All points; a tiny head among real and declared ranks, a large one among declared ones."""
    for size in declared_sizes:
        yield declared(TINY, size)
        yield counted(LARGE, size)
    for size in real_sizes:
        yield real(TINY, size)
