"""A rank killed in mid-step, in a refresh, while it saves, while it closes: ``torchrun`` starts all ranks again.

The job is a training as a platform runs it: ``torchrun -m benchmarks.faults.ranks``, killed and started again at any
moment. Every few steps each rank saves its state; after a start all go on from the newest state that all of them have.
States beyond it are removed: a run that goes on from there supersedes what they rely on.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import sgoif
from benchmarks.faults.training import PLAN, Pictures, Row, batches, fresh, load_pictures
from sgoif.run import load
from sgoif.store import RunFiles

RANKS = 2
BATCH, SAVE_EVERY, _KEPT = 32, 6, 3
# Workers that are started again otherwise find addresses of the dead ones in torchrun's own store (torch 2.13, gloo).
_FRESH_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
# of ten kills; closing comes last, since a job closes once
PHASES = ("step", "refresh", "checkpoint", "step", "start", "refresh", "checkpoint", "step", "step", "close")


def kill_ranks(folder: Path, times: int = 30, steps: int = 300, seed: int = 0) -> list[Row]:
    """Kill a random rank so many times, in jobs of up to ten kills each, and look at every run."""
    rng = np.random.default_rng(seed)
    pictures = vars(load_pictures(1000, 200))
    bare = _prepare(folder / "bare", pictures)
    assert _start(bare, steps, "--bare").wait(timeout=600) == 0
    seen: Counter[str] = Counter()
    phases: Counter[str] = Counter()
    while sum(phases.values()) < times:
        job = _prepare(folder / f"job-{seen['jobs']}", pictures)
        left = times - sum(phases.values())
        wanted = PHASES if left >= len(PHASES) else PHASES[len(PHASES) - left :]
        killed, found = _torment(job, steps, wanted, rng)
        phases += killed
        seen.update(found)
        seen.update(_examine(job, bare, steps, len(pictures["labels"])))
        seen["jobs"] += 1
    return [_row(seen, phases)]


def _row(seen: Counter[str], phases: Counter[str]) -> Row:
    kills = sum(phases.values())
    wrong = {
        name: seen[name] for name in ("lost", "twice", "missing", "uncounted", "unfinished", "differing", "litter")
    }
    where = ", ".join(f"{count} in {phase}" for phase, count in phases.items())
    outcome = (
        f"{where}; read after each kill: {wrong['lost']} settled visits lost, {wrong['twice']} counted twice; at last "
        f"{seen['visits']:,} of {seen['visits'] + wrong['missing']:,} visits, {seen['restarts']} restarts in run.json"
    )
    met = not any(wrong.values()) and seen["restarts"] == kills
    if not wrong["differing"]:
        outcome += "; weights those of a training never killed nor watched"
    return Row("a rank killed (SIGKILL) under torchrun", kills, outcome, met, {**seen, **wrong, "phases": dict(phases)})


def _prepare(folder: Path, pictures: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    torch.save(pictures, folder / "pictures.pt")
    return folder


def _start(folder: Path, steps: int, *more: str) -> subprocess.Popen[bytes]:
    root = Path(__file__).resolve().parents[2]
    paths = os.pathsep.join([str(root / "src"), str(root), os.environ.get("PYTHONPATH", "")])
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}", "--max-restarts=40"]
    job = ["-m", "benchmarks.faults.ranks", f"--folder={folder}", f"--steps={steps}", *more]
    with (folder / "log.txt").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, *torchrun, *job],
            cwd=root,
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **_FRESH_STORE},
        )


def _torment(
    folder: Path, steps: int, wanted: tuple[str, ...], rng: np.random.Generator
) -> tuple[Counter[str], Counter[str]]:
    """Run one job and kill it in each of some phases; what was killed, and what its run was like after each."""
    job, killed, seen = _start(folder, steps), Counter[str](), Counter[str]()
    dead: set[int] = set()
    for phase in wanted:
        victim = int(rng.integers(RANKS))
        pid = _wait_for(job, folder, victim, phase, dead, rng)
        if pid is None:
            break  # it ended first; the rest of the kills falls on another job
        os.kill(pid, signal.SIGKILL)
        dead |= {read_beacon(folder, rank)[0] for rank in range(RANKS)}
        killed[phase] += 1
        seen.update(_look(folder))
    if job.wait(timeout=600) != 0:
        raise RuntimeError((folder / "log.txt").read_text()[-3000:])
    return killed, seen


def _wait_for(
    job: subprocess.Popen[bytes], folder: Path, rank: int, phase: str, dead: set[int], rng: np.random.Generator
) -> int | None:
    """Wait until a living rank is in a phase, some way into its attempt; None where the job ended before."""
    is_due = phase in ("start", "close")  # others after some steps, so that the training gets on
    while job.poll() is None:
        pid, now = read_beacon(folder, rank)
        if pid and pid not in dead and not is_due and now in ("step", "refresh"):
            time.sleep(rng.uniform(0, 0.4))
            is_due = True
        elif pid and pid not in dead and is_due and now == phase:
            time.sleep(rng.uniform(0, 1.5 if phase == "start" else 0.004))
            return pid
        elif phase != "close" and now == "end":
            return None
        else:
            time.sleep(0.0003)
    return None


def _look(folder: Path) -> dict[str, int]:
    """Read a run whose writer was just killed: what of the saved steps is lost, what is there twice."""
    if not (folder / "run" / "run.json").exists():
        return {"without_a_run_yet": 1}
    saved = newest_state(folder, RANKS)
    settled = 0 if saved == 0 else (saved - 1) // PLAN.refresh_every * PLAN.refresh_every + 1
    with RunFiles(folder / "run") as files:
        found = files.sql("select step, count(*) as n, count(distinct id) as ids from visits group by step").to_pydict()
        skipped = len(files.skipped)
    there = dict(zip(found["step"], found["ids"], strict=True))
    lost = sum(BATCH - there.get(step, 0) for step in range(settled))
    return {"lost": lost + skipped, "twice": sum(found["n"]) - sum(found["ids"]), "read": 1}


def _examine(folder: Path, bare: Path, steps: int, num_examples: int) -> dict[str, int]:
    """Hold a finished run against the training: every visit once, sums add up, restarts told, nothing left over."""
    run = load(folder / "run")
    taken = enumerate(islice(batches(num_examples, BATCH), steps))
    wanted = {(step, example) for step, ids in taken for example in ids.tolist()}
    found = list(zip(run.visits["step"].tolist(), run.visits["id"].tolist(), strict=True))
    one, two = (torch.load(place / "weights.pt") for place in (folder, bare))
    return {
        "visits": len(set(found)),
        "twice": len(found) - len(set(found)),
        "missing": len(wanted - set(found)),
        "uncounted": abs(int(run.table["n_visits"].sum()) - len(wanted)) + run.info["dropped_rows"],
        "unfinished": int(run.info["state"] != "finished"),
        "attempts": len(run.info["attempts"]),
        "restarts": max(item.get("restarts", 0) for item in run.info["attempts"]),
        "faults": sum(run.info["faults"].values()) + sum(run.info["writing_faults"].values()),
        "differing": int(not all(torch.equal(value, two[name]) for name, value in one.items())),
        "litter": len(list((folder / "run").rglob(".*.tmp"))),
    }


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
    return max(set.intersection(*(set(_states_of(folder, rank)) for rank in range(size))), default=0)


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
        settings: dict[str, Any] = {"train_size": len(pictures.labels), "budget": sgoif.Budget(plan=PLAN)}
        out = str(folder / "run")
        monitor = sgoif.watch(wrapped, optimizer, anchors=pictures.held, out=out, trusted=True, **settings)
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--bare", action="store_true")
    options = parser.parse_args()
    train(options.folder, options.steps, not options.bare)
