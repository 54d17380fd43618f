"""Scoring of stored pictures by a snapshot, against bare decoding and forward passes.

50,000 CIFAR-10 pictures in 16 Parquet files, the small ResNet-9 after a short training, bf16. Several ways over these
files: decode and forward alone; the local engine; two local engines at once, each on half of the files; Ray Data with
two actors, once undisturbed and once with an actor killed in the middle. Rows of the engines are compared to the bit.
Throughput is told per second of CPU time, wall time beside it. Two busy cores share caches and memory, so that a CPU
second of either is worth less: what Ray adds is told by comparison with two local engines.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F
from torch import nn

import sgoif
from benchmarks import data, loops
from benchmarks.experiment import Experiment, option
from benchmarks.models import ResNet9
from sgoif.pictures.decode import decode, square
from sgoif.run import Run
from sgoif.scoring.engines import Engine, LocalEngine
from sgoif.scoring.operator import Job, PieceDone
from sgoif.scoring.pieces import Piece, list_pieces
from sgoif.scoring.records import read_records
from sgoif.scoring.score import score

Ask = partial[Run]  # score these pictures into a folder, by an engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One set of pictures."""

    examples: int = 50_000
    steps: int = option(40, help="of the training")
    batch: int = 250
    shards: int = 16
    ray: bool = option(True, help="two local engines at once, and Ray Data, too")


class Classifier(nn.Module):
    """ResNet-9 that takes pictures in [0, 1] and normalises them itself."""

    input_size = 32
    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.net = ResNet9(num_classes=10)
        self.net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in data.CIFAR10_STATS)
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.net((images - self.mean) / self.std)
        return found


def load_model(path: str) -> nn.Module:
    torch.set_num_threads(1)
    model = Classifier()
    model.load_state_dict(torch.load(path))
    return model


def write_shards(folder: Path, count: int, shards: int) -> None:
    """The encoded pictures as they are in the data, in files of equal size."""
    table = pq.read_table(data.data_root() / "cifar10" / "train_lossless.parquet").slice(0, count)
    table = pa.table({"id": table["index"].cast(pa.int64()), "image": table["webp"], "label": table["label"]})
    folder.mkdir(parents=True, exist_ok=True)
    for number, rows in enumerate(np.array_split(np.arange(count), shards)):
        pq.write_table(table.slice(rows[0], len(rows)), folder / f"shard-{number:02d}.parquet", row_group_size=1000)


def train_and_keep(folder: Path, steps: int) -> tuple[str, partial[nn.Module]]:
    """Train for some steps, watched; keep the weights and a snapshot."""
    images = data.cifar10("train", 20_000)
    pixels = torch.from_numpy(images.pixels).permute(0, 3, 1, 2).float().div(255)
    labels, held = torch.from_numpy(images.labels), data.trusted_holdout()
    anchors = (torch.from_numpy(held.pixels).permute(0, 3, 1, 2).float().div(255), torch.from_numpy(held.labels))
    recipe = loops.Recipe(num_epochs=1)
    torch.manual_seed(0)
    model = Classifier()
    optimizer = loops.optimiser(model, recipe)
    monitor = sgoif.watch(model, optimizer, anchors=anchors, train_size=len(labels), trusted=True)
    for batch in loops.epochs(pixels, labels, recipe, 0):
        if batch.step == steps:
            break
        with monitor.step(batch.indices, batch.labels):
            F.cross_entropy(loops.logits(model, batch.images, recipe), batch.labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    path, weights = str(folder / "snapshot.safetensors"), str(folder / "weights.pt")
    assert monitor.snapshot(path) is not None, monitor.faults
    torch.save(model.state_dict(), weights)
    return path, partial(load_model, weights)


def bare(make: partial[nn.Module], pieces: Sequence[Piece], batch: int) -> dict[str, float]:
    """Read, decode, forward, and throw the logits away."""
    model, count = make().eval(), 0
    wall, cpu = time.perf_counter(), time.process_time()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        for piece in pieces:
            records = list(read_records(piece))
            for start in range(0, len(records), batch):
                pictures = [square(decode(item.picture), 32) for item in records[start : start + batch] if item.picture]
                inputs = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float().div_(255)
                model(inputs.contiguous(memory_format=torch.channels_last))
                count += len(pictures)
    return _rates(count, time.perf_counter() - wall, time.process_time() - cpu)


class Measured:
    """An engine that keeps what its pieces took."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.sample = engine, engine.sample
        self.done: list[PieceDone] = []
        self.wall_s = 0.0

    def run(self, job: Job, pieces: Sequence[Piece]) -> Any:
        started = time.perf_counter()
        for item in self.engine.run(job, pieces):
            self.done.append(item)
            yield item
        self.wall_s = time.perf_counter() - started

    def rates(self) -> dict[str, float]:
        return _rates(
            sum(item.num_scored for item in self.done), self.wall_s, sum(item.cpu_seconds for item in self.done)
        )


def _rates(count: int, wall_s: float, cpu_s: float) -> dict[str, float]:
    return {"examples": count, "wall_s": wall_s, "cpu_s": cpu_s, "per_cpu_s": count / cpu_s}


def kill_an_actor(out: Path, killed: list[int]) -> None:
    """Kill one actor's process when three parts are written."""
    while len(list(out.glob("examples/rank-00000/*.parquet"))) < 3:
        time.sleep(0.1)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _is_actor(entry):
            os.kill(int(entry.name), signal.SIGKILL)
            killed.append(int(entry.name))
            return


def _is_actor(entry: Path) -> bool:
    try:
        title = (entry / "cmdline").read_bytes()
        is_ours = entry.stat().st_uid == os.getuid()
    except OSError:
        return False
    return is_ours and title.startswith(b"ray::") and b"_Scoring" in title


def same_rows(first: Run, second: Run) -> bool:
    """Whether two runs have the same rows, to the bit, in whatever order."""
    orders = [np.argsort(run.table["id"]) for run in (first, second)]
    return first.table.keys() == second.table.keys() and all(
        np.array_equal(column[orders[0]], second.table[name][orders[1]], equal_nan=column.dtype.kind == "f")
        for name, column in first.table.items()
    )


def measure(settings: Settings) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_shards(folder / "data", settings.examples, settings.shards)
        snapshot, make = train_and_keep(folder, settings.steps)
        source, local = str(folder / "data"), Measured(LocalEngine())
        found: dict[str, Any] = {"bare": bare(make, list_pieces(source), settings.batch)}
        ask: Ask = partial(score, snapshot, make, source, batch_size=settings.batch)
        run = ask(str(folder / "local"), engine=local)
        found["local"] = local.rates()
        found["local over bare"] = found["local"]["per_cpu_s"] / found["bare"]["per_cpu_s"]
        if settings.ray:
            found["two local"] = two_at_once(ask, folder)
            for name in ("ray", "ray, an actor killed"):
                out = folder / name.replace(", ", "-")
                found[name] = _on_ray(ask, out, run, "killed" in name)
                for other in ("local", "two local"):
                    found[f"{name} over {other}"] = found[name]["per_cpu_s"] / found[other]["per_cpu_s"]
    return found


def _half(ask: Ask, out: str, half: int) -> dict[str, float]:
    torch.set_num_threads(1)
    engine = Measured(_Half(half))
    ask(out, engine=engine)
    return engine.rates()


class _Half(LocalEngine):
    """The local engine on every second piece."""

    def __init__(self, half: int) -> None:
        self.half = half

    def run(self, job: Job, pieces: Sequence[Piece]) -> Iterator[PieceDone]:
        yield from super().run(job, pieces[self.half :: 2])


def two_at_once(ask: Ask, folder: Path) -> dict[str, float]:
    """What two local engines do in two processes: the two actors of Ray without Ray."""
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        halves = pool.starmap(_half, [(ask, str(folder / f"half-{half}"), half) for half in range(2)])
    count, cpu_s = (sum(half[name] for half in halves) for name in ("examples", "cpu_s"))
    return _rates(int(count), max(half["wall_s"] for half in halves), cpu_s)


def _on_ray(ask: Ask, out: Path, local: Run, with_kill: bool) -> dict[str, Any]:
    from sgoif.scoring.on_ray import RayEngine

    killed: list[int] = []
    if with_kill:
        threading.Thread(target=kill_an_actor, args=(out, killed), daemon=True).start()
    engine = Measured(RayEngine(actors=2, cpus=0.25))
    run = ask(str(out), engine=engine)
    assert bool(killed) == with_kill, "no actor was found to kill"
    return {**engine.rates(), "rows are the local engine's": same_rows(local, run)}


SCORING = Experiment(
    name="scoring",
    settings=Settings,
    run=measure,
    unrecorded=("seed", "ray"),
    small={"examples": 2000, "steps": 10, "ray": False},
)
