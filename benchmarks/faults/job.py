"""A training as a platform runs it: ``torchrun -m benchmarks.faults.job``, killed and started again at any moment.

Every few steps each rank saves its state; after a start all go on from the newest state that all of them have. States
beyond it are removed: a run that goes on from there supersedes what they rely on.
"""

from __future__ import annotations

import argparse
import os
import re
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import sgoif
from benchmarks.faults.subject import PLAN, Pictures, batches, fresh

__all__ = ["BATCH", "SAVE_EVERY", "newest_state", "read_beacon"]

BATCH, SAVE_EVERY, _KEPT = 32, 6, 3
_STATE = re.compile(r"state-(\d+)-(\d+)\.pt")


class Beacon:
    """Says in a file of a few bytes which process a rank is and what it does, so that it can be killed in it."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._file = os.open(folder / f"beacon-{rank}", os.O_RDWR | os.O_CREAT)

    def show(self, phase: str) -> None:
        os.pwrite(self._file, f"{os.getpid():>10} {phase:<12}".encode(), 0)


def read_beacon(folder: Path, rank: int) -> tuple[int, str]:
    """Process and phase of a rank; 0 where it never started."""
    try:
        pid, phase = (folder / f"beacon-{rank}").read_text().split()
    except (FileNotFoundError, ValueError):
        return 0, ""
    return int(pid), phase


def newest_state(folder: Path, size: int) -> int:
    """The newest step that all ranks have a state of; 0 where there is none."""
    found: dict[int, set[int]] = {}
    for path in folder.glob("state-*.pt"):
        match = _STATE.fullmatch(path.name)
        if match is not None:
            found.setdefault(int(match[2]), set()).add(int(match[1]))
    return max((step for step, ranks in found.items() if len(ranks) == size), default=0)


def _states_of(folder: Path, rank: int) -> dict[int, Path]:
    return {int(path.stem.rpartition("-")[2]): path for path in folder.glob(f"state-{rank}-*.pt")}


def _save(folder: Path, rank: int, step: int, parts: dict[str, Any]) -> None:
    state = {name: part.state_dict() for name, part in parts.items()}
    beside = folder / f".state-{rank}.tmp"
    torch.save(state, beside)
    os.replace(beside, folder / f"state-{rank}-{step}.pt")
    for old, path in sorted(_states_of(folder, rank).items())[:-_KEPT]:
        assert old < step
        path.unlink()


def _resume(folder: Path, rank: int, size: int, parts: dict[str, Any]) -> int:
    step = newest_state(folder, size)
    dist.barrier()  # all have looked before any removes
    for newer, path in _states_of(folder, rank).items():
        if newer > step:
            path.unlink()
    if step:
        state = torch.load(folder / f"state-{rank}-{step}.pt")
        for name, part in parts.items():
            part.load_state_dict(state[name])
    return step


def train(folder: Path, steps: int, is_watched: bool) -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    beacon = Beacon(folder, rank)
    beacon.show("start")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    pictures = Pictures(**torch.load(folder / "pictures.pt", weights_only=False))
    model = fresh()
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer}
    monitor: Any = None
    if is_watched:
        settings: dict[str, Any] = {
            "train_size": len(pictures.labels),
            "budget": sgoif.Budget(plan=PLAN),
            "trusted": True,
        }
        monitor = sgoif.watch(wrapped, optimizer, anchors=pictures.held, out=str(folder / "run"), **settings)
        parts["monitor"] = monitor
    first = _resume(folder, rank, size, parts)
    for step, picked in enumerate(islice(batches(len(pictures.labels), BATCH), steps)):
        if step < first:
            continue
        mine = picked[rank::size]
        beacon.show("step")
        with monitor.step(mine, pictures.labels[mine]) if monitor is not None else nullcontext():
            F.cross_entropy(wrapped(pictures.pixels[mine]), pictures.labels[mine]).backward()
            if PLAN.is_refresh(step):
                beacon.show("refresh")
        beacon.show("step")
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % SAVE_EVERY == 0:
            beacon.show("checkpoint")
            _save(folder, rank, step + 1, parts)
    beacon.show("close")
    if monitor is not None:
        monitor.close()
    beacon.show("end")
    if rank == 0:
        torch.save(model.state_dict(), folder / "weights.pt")
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--bare", action="store_true")
    options = parser.parse_args()
    train(options.folder, options.steps, not options.bare)


if __name__ == "__main__":
    main()
