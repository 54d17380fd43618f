"""What the store carries, part by part, each with its bar.

write   rows per second of one core, all columns, integer and string ids
query   the 1,000 most harmful of many visits, in SQL over the files, in a process of its own: time and peak memory
step    a training step that hands its visits to the store over one that does not, in alternating blocks
kill    a run killed with SIGKILL at random moments and resumed each time: readable, nothing twice, nothing missing
s3      the same on an S3 served on this machine by moto

``closing`` is an experiment of its own: a small real training gives canaries; the visits are made up, one per example,
and lie on the disk as several ranks leave them. Closing adds them up, learns probabilities and writes the table of
examples, in a process of its own: time and peak memory, which must not grow with the run.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F

import sgoif
from benchmarks import timing
from benchmarks.experiment import Experiment, option
from benchmarks.overhead import workload
from benchmarks.s3 import local_s3
from sgoif.overhead import BenchLoop
from sgoif.records import ScoreBatch
from sgoif.store import ParquetSink, RunFiles
from sgoif.store.blocks import encode_part, sorted_groups, visit_columns
from sgoif.store.parts import name_part
from sgoif.store.schema import SIGNALS, schema_of
from sgoif.store.writer import DeferredSink, Pace

WRITE_BAR, QUERY_BAR_S, PEAK_BAR_MB, STEP_BAR = 300_000, 60.0, 2048.0, 1.01
TOP = "select id, step, given_label, worst_anchor, harm from visits order by harm desc limit 1000"
KILL_ROWS, KILL_EXAMPLES, CHECKPOINT_EVERY = 500, 20_000, 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One part; each reads the sizes that it needs."""

    part: Literal["write", "query", "step", "kill", "s3"] = "write"
    ids: Literal["int", "string"] = "int"
    rows: int = option(2_000_000, help="visits that are written or queried; 100 million take 8 GB of disk")
    blocks: int = option(10, help="interleaved blocks of 40 steps (even)")
    cpu_time: bool = option(False, help="time steps by the CPU's clock, where others compute too")
    kills: int = 20
    folder: str | None = option(None, help="where to write; a temporary folder if not given")


def measure(settings: Settings) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="sgoif-store-", dir=settings.folder) as name:
        folder = Path(name)
        if settings.part == "write":
            found = measure_write(settings.rows, settings.ids, folder)
        elif settings.part == "query":
            found = measure_query(settings.rows, folder)
        elif settings.part == "step":
            found = measure_step(settings.blocks, folder, settings.cpu_time)
        elif settings.part == "kill":
            found = {"met": True, **kill_and_resume(str(folder / "kill"), folder / "kill.json", settings.kills)}
        else:
            with local_s3() as bucket:
                seen = kill_and_resume(f"{bucket}/kill", folder / "s3.json", settings.kills, seed=1, longest_s=3.0)
            found = {"met": True, **seen}
    return {"part": settings.part, **found}


def visits(ids: np.ndarray, step: int, rng: np.random.Generator) -> ScoreBatch:
    """One step's visits, packed as the monitor packs them: columns are views of one array."""
    packed = rng.standard_normal((len(ids), len(SIGNALS)), dtype=np.float32)
    for name in ("runner_up", "worst_anchor"):
        packed[:, SIGNALS.index(name)] = rng.integers(0, 10, len(ids))
    for name in ("confidence", "confidence_worst"):
        packed[:, SIGNALS.index(name)] = rng.random()
    packed[:, SIGNALS.index("flags")] = 0
    columns = {name: packed[:, i] for i, name in enumerate(SIGNALS)}
    columns |= {f"{name}_std": columns[name].astype(np.float64) for name in ("harm", "worst")}
    return ScoreBatch(ids, rng.integers(0, 10, len(ids)), step, step // 200, 0, 0, 0, columns)


def name_ids(ids: np.ndarray, kind: str, shards: int, digits: int) -> np.ndarray:
    """Ids as they are, or as paths within shards."""
    return ids if kind == "int" else np.array([f"shard-{i % shards:05d}.tar/{i:0{digits}d}.jpg" for i in ids])


def measure_write(rows: int, kind: str, folder: Path) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    # made beforehand, no row twice: repeated rows would compress as no run does
    steps = [visits(name_ids(rng.integers(0, 10**9, 250), kind, 997, 9), step, rng) for step in range(rows // 250)]
    begun, busy = time.perf_counter(), time.process_time()
    sink = ParquetSink(folder)
    for item in steps:
        sink.write(item)
    sink.close()
    seconds, cpu = time.perf_counter() - begun, time.process_time() - busy
    assert sink.faults == {} and sink.num_rows == rows // 250 * 250, sink.faults
    size = sum(path.stat().st_size for path in folder.rglob("*.parquet"))
    rates = {"rows_per_cpu_s": sink.num_rows / cpu, "rows_per_s": sink.num_rows / seconds}
    known = {"ids": kind, "rows": sink.num_rows, "bytes_per_row": size / sink.num_rows}
    return {**known, **rates, "met": rates["rows_per_cpu_s"] >= WRITE_BAR}


def measure_query(rows: int, folder: Path) -> dict[str, Any]:
    written = write_many(folder / "query", rows)
    found = timing.run_in_process(query, str(folder / "query"))
    met = found["seconds"] < QUERY_BAR_S and found["peak_mb"] < PEAK_BAR_MB and found["rows"] == 1000
    return {"visits": written, "met": met, **found}


def write_many(target: Path, rows: int, part_rows: int = 600_000, different: int = 16) -> int:
    """Write a run of many visits at the speed of the disk: a few parts as the sink makes them, each copied."""
    ParquetSink(target).close()
    count = max(1, rows // part_rows)
    for first in range(min(different, count)):
        rng = np.random.default_rng(first)
        step = visits(rng.integers(0, 10**9, part_rows), first, rng)
        schema = schema_of("visits", "int")
        data = encode_part(schema, sorted_groups(visit_columns([step], 0, "int"), schema))
        for part in range(first, count, different):
            path = target / name_part("visits", 0, 0, part)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    return count * part_rows


def query(url: str) -> dict[str, Any]:
    """Ask for the most harmful visits; what that took this process."""
    begun, busy = time.perf_counter(), time.process_time()
    files = RunFiles(url)
    files.parts("visits")
    opened = time.perf_counter() - begun
    found = files.sql(TOP)
    assert (np.diff(found["harm"].to_numpy()) <= 0).all()
    seconds, cpu = time.perf_counter() - begun, time.process_time() - busy
    took = {"seconds": seconds, "cpu_s": cpu, "open_s": opened, "rows": found.num_rows}
    return {**took, "peak_mb": timing.peak_mb()}


class Loop:
    """A training loop on fixed random pictures, with or without a sink; a block ends with a checkpoint of the sink.

    The checkpoint waits for the writing thread, so that all that a block caused is counted in it.
    """

    def __init__(self, sink: ParquetSink | None, block: int) -> None:
        model, batch, _ = workload("resnet9", classes=10)
        self.training = BenchLoop(model, batch, is_watched=False, autocast=torch.bfloat16)
        self.sink, self.block, self.count = sink, block, 0
        self.sink_s, self.all_s = 0.0, 0.0  # CPU seconds: of the store's work on either thread, and of everything
        rng = np.random.default_rng(0)
        self.steps = [visits(np.arange(250) + 250 * i, i, rng) for i in range(50)]

    def step(self) -> None:
        process, thread = time.process_time(), time.thread_time()
        self.training.step()
        self.count += 1
        begun = time.thread_time()
        if self.sink is not None:
            self.sink.write(self.steps[self.count % len(self.steps)])
            if self.count % self.block == 0:
                self.sink.checkpoint()
        ended = time.thread_time()
        all_s = time.process_time() - process
        if self.count <= self.block:  # warming up: pyarrow imports pandas at its first table, where it is installed
            return
        self.all_s += all_s
        self.sink_s += ended - begun + all_s - (ended - thread)  # what this thread did not do, the writing one did


def measure_step(blocks: int, folder: Path, cpu_time: bool) -> dict[str, Any]:
    block, sink = 40, ParquetSink(folder)
    bare, writing = Loop(None, block), Loop(sink, block)
    timings = timing.alternate(
        {"bare": bare.step, "writing": writing.step},
        blocks=blocks,
        steps_per_block=block,
        warmup=block,
        clock=time.process_time if cpu_time else time.perf_counter,
        turn=1,
    )
    sink.close()
    assert sink.faults == {} and sink.num_rows == 250 * writing.count, sink.faults
    return {
        # The ratio of two noisy times cannot show a thousandth; the store's share of the same steps' CPU seconds can.
        "own_share": writing.sink_s / (writing.all_s - writing.sink_s),
        "own_share_bare": bare.sink_s / bare.all_s,  # what other threads do without a sink: the error of the reckoning
        "cpu_time": cpu_time,
        "timing": timings.summary(),
        "met": timings.ratio("writing").value <= STEP_BAR,
    }


def write_run(url: str, state: Path, until: int, ready: Any) -> None:
    """A run as a user's script makes it: it goes on from its last checkpoint, and makes one every few steps."""
    start = _saved_step(state)
    sink = ParquetSink(url, start_step=start, pace=Pace(part_bytes=150_000))
    ready.set()
    for step in range(start, until):
        first = step * KILL_ROWS
        item = visits((first + np.arange(KILL_ROWS)) % KILL_EXAMPLES, step, np.random.default_rng(step))
        sink.write(item)
        if (step + 1) % CHECKPOINT_EVERY == 0:
            assert sink.checkpoint()["complete"], sink.faults
            beside = state.with_suffix(".tmp")
            beside.write_text(json.dumps({"step": step + 1}))
            os.replace(beside, state)
    sink.close()


def kill_and_resume(url: str, state: Path, kills: int, seed: int = 0, longest_s: float = 1.0) -> dict[str, int]:
    """Kill a writing process again and again, look at its run each time, and let it end at last.

    Raises:
        AssertionError: A run was not readable, or had a visit twice, or lacked one from before its last checkpoint.
    """
    rng = np.random.default_rng(seed)
    seen = {"kills": kills, "with_visits": 0, "beyond_checkpoint": 0}
    for _ in range(kills):
        process = _start(url, state, 10**9)
        time.sleep(rng.uniform(0, longest_s))
        process.kill()
        process.join()
        saved = _saved_step(state)
        rows = check_run(url, saved)
        seen["with_visits"] += rows > 0
        seen["beyond_checkpoint"] += rows > saved * KILL_ROWS
    until = _saved_step(state) + 2 * CHECKPOINT_EVERY + 7
    last = _start(url, state, until)
    last.join(timeout=300)
    assert last.exitcode == 0
    seen["visits"] = check_run(url, until)
    assert seen["visits"] == until * KILL_ROWS and RunFiles(url).is_finished
    return seen


def _saved_step(state: Path) -> int:
    return int(json.loads(state.read_text())["step"]) if state.exists() else 0


def _start(url: str, state: Path, until: int) -> SpawnProcess:
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=write_run, args=(url, state, until, ready), daemon=True)
    process.start()
    assert ready.wait(timeout=120), "the writing process did not start"
    return process


def check_run(url: str, saved: int) -> int:
    """Ask a run whether all its steps are whole, each visit there once, and all there before a step; count visits."""
    files = RunFiles(url)
    steps = files.sql(
        "select step, count(*) as rows, count(distinct id) as ids, count(distinct attempt) as attempts, "
        "sum(harm::double) as total from visits group by step order by step"
    ).to_pydict()
    assert files.skipped == [], files.skipped
    assert steps["step"][:saved] == list(range(saved)), f"steps before {saved} are missing"
    assert set(steps["rows"]) <= {KILL_ROWS} and set(steps["ids"]) <= {KILL_ROWS}, "a visit is missing or there twice"
    assert set(steps["attempts"]) <= {1}
    for i in range(0, len(steps["step"]), 37):  # and the numbers are those that were sent
        sent = visits(np.arange(KILL_ROWS), 0, np.random.default_rng(steps["step"][i])).columns["harm"]
        assert abs(steps["total"][i] - float(sent.astype(np.float64).sum())) < 1e-6
    return sum(steps["rows"])


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosingSettings:
    """One run."""

    examples: int = 20_000_000
    folder: str | None = option(None, help="for the run, about 130 bytes an example; temporary by default")


def measure_closing(settings: ClosingSettings) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=settings.folder) as folder:
        target, parts = Path(folder) / "run", -(-settings.examples // 600_000)
        write_many(target, parts * 600_000, different=parts)  # ids of 10^9: few come twice
        found = timing.run_in_process(close_run, str(target))
    return {"met": found["peak_mb"] < PEAK_BAR_MB and found["state"] == "finished", **found}


def close_run(url: str) -> dict[str, Any]:
    """Close a run whose visits are there; what that took this process."""
    monitor = watch_training()
    sink = DeferredSink(url)
    sink.resume(10**9)  # nothing of what is there is superseded
    monitor.recorder.sink, monitor.recorder.keeps_evidence = sink, False
    before, begun, busy = timing.peak_mb(), time.perf_counter(), time.process_time()
    run = monitor.close()
    seconds, cpu_s = time.perf_counter() - begun, time.process_time() - busy
    facts = {name: run.info.get(name) for name in ("num_examples", "calibrated_on", "expected_errors", "state")}
    return {"seconds": seconds, "cpu_s": cpu_s, "before_mb": before, "peak_mb": timing.peak_mb(), **facts}


def watch_training(classes: int = 10) -> Any:
    """A monitor after a short training, whose hold-out has been looked at."""
    torch.manual_seed(0)
    centres = torch.randn(classes, 32)
    labels = torch.randint(0, classes, (4000,))
    inputs = centres[labels] + torch.randn(4000, 32)
    model = torch.nn.Linear(32, classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    holdout = (inputs[2000:], labels[2000:])
    monitor = sgoif.watch(model, optimizer, anchors=holdout, train_size=2000, trusted=True)
    for ids in torch.arange(2000).repeat(5).split(50):
        with monitor.step(ids, labels[ids]):
            F.cross_entropy(model(inputs[ids]), labels[ids]).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert monitor.faults == {}, monitor.faults
    return monitor


STORE = Experiment(
    name="store",
    settings=Settings,
    run=measure,
    unrecorded=("seed", "folder"),
    full=[
        {"part": "write", "ids": ["int", "string"]},
        {"part": "query", "rows": 20_000_000},
        {"part": "step"},
        {"part": "kill"},
        {"part": "s3", "kills": 5},
    ],
    small={"part": "write", "ids": ["int", "string"], "rows": 200_000},
)
CLOSING = Experiment(name="closing", settings=ClosingSettings, run=measure_closing, unrecorded=("seed", "folder"))
