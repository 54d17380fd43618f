"""Exchanges against the number of ranks: real gloo processes, declared ones, and how long real ones take to meet.

A declared world answers each exchange as if every other rank had given what this one gave. Nothing is sent, and what is
counted is what a real world of as many ranks counts. For a head that would take long to train, the exchanging functions
are called alone, on zeros; a test compares them with a whole training among declared ranks.

Bytes are those of the buffers of one rank, as the code counts them; a sum is sent about twice, what is gathered once.
Seconds include the wait for the others, on a machine that has two cores for all of them.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import ceil, log2
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

import sgoif
from benchmarks.scale.loop import Loop, Shape
from benchmarks.timing import run_ranks
from sgoif.curvature import Statistic
from sgoif.distributed import Group
from sgoif.distributed.peers import Value
from sgoif.influence import AnchorDraw
from sgoif.records import GradientRows
from sgoif.training.engine import MANY_CLASSES
from sgoif.training.exchange import gather_draw, gather_scores, reduce_curvature
from sgoif.training.schedule import Plan
from sgoif.training.visits import STANDARDISED

TINY = Shape(examples=10**6, width=64, trunk=32, batch=32)
LARGE = Shape(examples=10**9, classes=1000, width=1024, trunk=32, batch=64)  # a ViT-L's head
_PERIODS, _MEETINGS = 2, 20


class Declared(Group):
    """Rank 0 of a world of so many ranks that is not there."""

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
        return self._time("small", super()._largest, few)

    def _sum(self, packed: Tensor) -> Tensor:
        return self._time("summed", super()._sum, packed)

    def _gather(self, packed: Tensor) -> Tensor:
        return self._time("gathered", super()._gather, packed)

    def _time(self, kind: str, exchange: Callable[[Tensor], Tensor], given: Tensor) -> Tensor:
        self.exchanges[kind] += 1
        begun = time.perf_counter()
        found = exchange(given)
        self.seconds.append(time.perf_counter() - begun)
        return found


def measure(kind: str, size: int) -> dict[str, Any]:
    """What one rank exchanges per step: of a tiny head among real or declared ranks, of a large one by counting."""
    shape = LARGE if kind == "large" else TINY
    if kind == "real":
        found = run_ranks(size, time_exchanges, shape)
    elif kind == "declared":
        found = count_exchanges(shape, Declared(size))
    else:
        counted = exchanges_of(sgoif.Plan(), shape.width + 1, shape.classes, shape.batch, size)
        found = {"bytes_per_step": sum(counted.bytes.values()), "exchanges_per_step": counted.count}
    return {"kind": "real" if kind == "real" else "declared", "ranks": size, "shape": asdict(shape), **found}


def count_exchanges(shape: Shape, peers: Declared | Timed) -> dict[str, Any]:
    """Whole periods of the plan, after a first one in which everything happens for the first time."""
    loop = Loop(shape, peers=peers)
    assert loop.monitor is not None
    period = loop.monitor.plan.refresh_every
    loop.run(period)
    before, exchanges, steps = peers.num_bytes, dict(peers.exchanges), _PERIODS * period
    if isinstance(peers, Timed):
        peers.seconds.clear()
    loop.run(steps)
    counts = {name: (count - exchanges.get(name, 0)) / steps for name, count in peers.exchanges.items()}
    return {"steps": steps, "bytes_per_step": (peers.num_bytes - before) / steps, "exchanges_per_step": counts}


def time_exchanges(shape: Shape) -> dict[str, Any]:
    """The same of this real rank, and its seconds."""
    peers = Timed(range(dist.get_world_size()))
    found = count_exchanges(shape, peers)
    seconds = {"seconds_per_exchange": median(peers.seconds), "seconds_per_step": sum(peers.seconds) / found["steps"]}
    return {**found, **seconds}


@dataclass(frozen=True, slots=True)
class Exchanges:
    """Buffers of one rank and how often they are exchanged, per step on average."""

    ranks: int
    bytes: dict[str, float]  # by kind: small, summed, gathered
    count: dict[str, float]

    def seconds(self, bytes_per_s: float, message_s: float) -> float:
        """How long they take: few numbers are sent in every round, a sum twice in all, what is gathered once."""
        rounds = ceil(log2(self.ranks))
        sent = rounds * self.bytes["small"] + 2 * self.bytes["summed"] + self.bytes["gathered"]
        messages = rounds * (self.count["small"] + 2 * self.count["summed"] + self.count["gathered"])
        return sent / bytes_per_s + message_s * messages

    def ring_seconds(self, bytes_per_s: float, message_s: float) -> float:
        """How long they would take around a ring, as gloo's own exchanges go."""
        sent = 2 * self.bytes["small"] + 2 * self.bytes["summed"] + self.bytes["gathered"]
        hops = (self.ranks - 1) * (2 * self.count["small"] + 2 * self.count["summed"] + self.count["gathered"])
        return sent / bytes_per_s + message_s * hops


def exchanges_of(plan: Plan, inputs: int, outputs: int, batch: int, ranks: int) -> Exchanges:
    """Count one period of a plan, for a head of so many inputs (bias column included) and outputs."""
    peers, period = Declared(ranks), plan.refresh_every
    peers.check_in_sync(0, 0, True)
    _absorb(peers, inputs, outputs, batch * period // plan.observe_every)
    _refresh(peers, plan, inputs, outputs, batch)
    kinds = ("small", "summed", "gathered")
    moved, count = ({k: found[k] / period for k in kinds} for found in (peers.moved, peers.exchanges))
    return Exchanges(ranks, moved, count)


def _absorb(peers: Declared, inputs: int, outputs: int, examples: int) -> None:
    is_many = outputs > MANY_CLASSES
    factors = {
        "inputs": Statistic(torch.zeros(1, inputs, inputs), examples, "mean", True),
        "outputs": Statistic(
            torch.zeros(1, *((outputs,) if is_many else 2 * (outputs,))), examples, "mean", not is_many
        ),
    }
    reduce_curvature(peers, factors)


def _refresh(peers: Declared, plan: Plan, inputs: int, outputs: int, batch: int) -> None:
    peers.check_in_sync(0)
    positions = torch.arange(plan.examples_per_refresh)
    mine = len(peers.share_of(positions))
    rows = GradientRows("head", torch.zeros(mine, 1, inputs, 1), torch.zeros(mine, 1, outputs, 1))
    draw = AnchorDraw(positions[:mine], positions[:mine], torch.zeros(mine, outputs), {"head": rows})
    gather_draw(peers, draw, positions, positions)
    scores = {name: np.zeros(batch, np.float32) for name in STANDARDISED}
    gather_scores(peers, [(batch, scores)] * (plan.refresh_every // plan.stride), STANDARDISED)


def meet(size: int, is_lazy: bool = False) -> dict[str, Any]:
    """Join so many ranks on this machine and let them meet, with sockets made at once or when they are used.

    Real processes, forked from one that has torch already, so that many fit into the memory. They share two cores: what
    a rank's own processor does for an exchange tells more than the clock, and is kept beside it.
    """
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        port = _free_port()
        ranks = [context.Process(target=_meet, args=(rank, size, port, folder, is_lazy)) for rank in range(size)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        if any(process.exitcode for process in ranks):
            raise RuntimeError(f"a rank of {size} failed: {[process.exitcode for process in ranks]}")
        found: dict[str, Any] = json.loads((Path(folder) / "found.json").read_text())
    return {"ranks": size, "is_lazy": is_lazy, **found}


def _meet(rank: int, size: int, port: int, folder: str, is_lazy: bool) -> None:
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
