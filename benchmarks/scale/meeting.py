"""How ranks come together: seconds and sockets until a group of ours is there, and seconds of its smallest exchange.

Real processes, forked from one that has torch already, so that many fit into the memory. They share two cores: what a
rank's own processor does for an exchange tells more than the clock, and is kept beside it.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from sgoif.distributed import Group

__all__ = ["SIZES", "meet"]

SIZES = (2, 4, 8, 16, 32, 64)
_MEETINGS = 20


def meet(size: int, is_lazy: bool = False) -> dict[str, Any]:
    """Join so many ranks on this machine and let them meet, with sockets made at once or when they are used."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        port = _free_port()
        ranks = [context.Process(target=_rank, args=(rank, size, port, folder, is_lazy)) for rank in range(size)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        if any(process.exitcode for process in ranks):
            raise RuntimeError(f"a rank of {size} failed: {[process.exitcode for process in ranks]}")
        found: dict[str, Any] = json.loads((Path(folder) / "found.json").read_text())
    return {"ranks": size, "is_lazy": is_lazy, **found}


def _rank(rank: int, size: int, port: int, folder: str, is_lazy: bool) -> None:
    os.environ["TORCH_GLOO_LAZY_INIT"] = str(int(is_lazy))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    dist.barrier()
    sockets, begun = _num_open(), time.perf_counter()
    group = Group(range(size))
    joined = time.perf_counter() - begun
    spent, seconds = time.process_time(), []
    for step in range(_MEETINGS):
        begun = time.perf_counter()
        group.check_in_sync(step, True, False)
        seconds.append(time.perf_counter() - begun)
    cpu = (time.process_time() - spent) / _MEETINGS
    found = {"join_s": joined, "sockets": _num_open() - sockets, "meet_s": median(seconds), "meet_cpu_s": cpu}
    if rank == 0:
        (Path(folder) / "found.json").write_text(json.dumps(found))
    dist.barrier()
    group.abort()
    dist.destroy_process_group()


def _num_open() -> int:
    return len(os.listdir("/proc/self/fd"))


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
