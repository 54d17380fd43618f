"""What the monitor costs under DDP: ``python -m benchmarks.ddp``, last line ``ddp_overhead_ratio X``.

Two processes of one thread each, joined by gloo. In both of them a bare and a watched copy of the model train in blocks
that take turns (bare, watched, watched, bare), so that a drift of the machine falls on both alike; the time is that of
rank 0, which waits for the other in every step. Bytes are those of the buffers that the monitor exchanged, over those
of the gradients that DDP reduced in the same steps.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

import sgoif
from benchmarks.overhead import workload
from benchmarks.records import append_result
from benchmarks.timing import alternate

BAR, BYTES_BAR = 1.12, 0.02
PLAN = sgoif.Plan()


class Loop:
    """One rank's training on a batch of its own, watched or not."""

    def __init__(self, name: str, batch: int, is_watched: bool) -> None:
        model, (images, labels), anchors = workload(name, classes=10)
        rank = dist.get_rank()
        self.images, self.labels = images.roll(rank, 0)[:batch], labels.roll(rank, 0)[:batch]
        self.wrapped = DistributedDataParallel(model.train())
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        self.ids = torch.arange(batch) + rank * batch
        self.num_steps = 0
        settings: dict[str, Any] = {"anchors": anchors, "train_size": 50_000}
        settings["budget"] = sgoif.Budget(plan=PLAN, keep_visits="none")
        self.monitor: Any = sgoif.watch(self.wrapped, self.optimizer, **settings) if is_watched else None
        self.gradient_bytes = sum(p.nbytes for p in model.parameters() if p.requires_grad)

    def step(self) -> None:
        """Do one training step."""
        around: AbstractContextManager[Any] = nullcontext()
        if self.monitor is not None:
            around = self.monitor.step(self.ids, self.labels)
        with around:
            with torch.autocast("cpu", torch.bfloat16):
                outputs = self.wrapped(self.images)
            F.cross_entropy(outputs.float(), self.labels).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.num_steps += 1


def measure(rank: int, size: int, place: str, name: str, batch: int, blocks: int, save: str | None) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=size)
    bare, watched = Loop(name, batch, False), Loop(name, batch, True)
    timings = alternate(
        {"bare": bare.step, "watched": watched.step}, blocks=blocks, steps_per_block=PLAN.refresh_every, turn=1
    )
    assert watched.monitor.is_on and watched.monitor.faults == {}, watched.monitor.faults
    if rank == 0:
        share = watched.monitor.peers.num_bytes / watched.num_steps / watched.gradient_bytes
        ratio = timings.ratio("watched")
        print(
            f"{name}, {size} ranks of batch {batch}: bare step {1e3 * timings.median_s('bare'):.0f} ms, watched {ratio}"
        )
        print(f"  bar {BAR:.2f}: {'met' if ratio.value <= BAR else 'MISSED'}")
        print(f"  bytes {100 * share:.2f}% of DDP's own  bar {100 * BYTES_BAR:.0f}%: ", end="")
        print("met" if share <= BYTES_BAR else "MISSED")
        if save:
            settings = {"model": name, "batch": batch, "ranks": size, "blocks": blocks}
            record = {"benchmark": "ddp", "settings": settings, "seed": 0, "bytes_share": share}
            append_result(save, {**record, "timing": timings.summary()})
        print(f"ddp_overhead_ratio {ratio.value:.3f}", flush=True)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet18", choices=["resnet9", "resnet18", "vit"])
    parser.add_argument("--batch", type=int, default=64, help="of each rank")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=4, help="of a refresh period each, per variant (even)")
    parser.add_argument("--save", metavar="FILE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = str(Path(folder) / "rendezvous")
        arguments = (options.ranks, place, options.model, options.batch, options.blocks, options.save)
        spawn(measure, arguments, nprocs=options.ranks)


if __name__ == "__main__":
    main()
