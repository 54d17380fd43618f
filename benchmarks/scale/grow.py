"""How cost grows, measured on a small machine; :mod:`benchmarks.scale.plan` estimates from it what a large run costs.

step     seconds of the monitor against examples n, classes K and inputs of the head d; ratio to the bare step
ranks    bytes and seconds of exchanges by real ranks, bytes by declared ones
meeting  joining a group of ours, and its smallest exchange, against the number of ranks
store    writing, asking and adding up visits: rates, bytes and peak memory against their number

Ratios are to a bare step of a small perceptron, where the monitor looks dear; seconds are what a larger trunk would not
change. 10^9 examples are declared, with synthetic ids, as rank 0 of two that write their visits. What scoring by a
snapshot takes is measured by ``scoring``; its rows are read from there.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

import sgoif
from benchmarks.experiment import Experiment, option
from benchmarks.scale import ranks
from benchmarks.scale.loop import Loop, Shape
from benchmarks.store import name_ids, query, visits
from benchmarks.tables.rows import Run, latest, table
from benchmarks.timing import alternate, peak_mb, run_in_process
from sgoif.records import ScoreBatch
from sgoif.store import ParquetSink, RunFiles, merge_evidence

_MANY = 5000  # classes above which steps are not compared in blocks: a refresh takes seconds
_STEP_ROWS, _POOL, _IDS = 5000, 200, 2 * 10**9
_MERGED = 10**7  # visits that are added up at most
SHAPES = {
    "classes": Shape(),
    "width": Shape(),
    "examples": Shape(width=128, trunk=64),
    "small": Shape(width=32, trunk=32, batch=16),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One point of one curve."""

    part: Literal["step", "ranks", "meeting", "store"] = "step"
    kind: str = option(
        "classes",
        help="classes, width, examples; real, declared, large (head); eager, lazy (sockets); int, string (ids)",
    )
    size: int = option(10, help="classes, width, examples, ranks or visits")
    blocks: int = option(4, help="of a refresh period each, per variant (even)")
    folder: str | None = option(None, help="where visits are written; a temporary folder if not given")


def measure(settings: Settings) -> dict[str, Any]:
    kind, size = settings.kind, settings.size
    if settings.part == "ranks":
        return ranks.measure(kind, size)
    if settings.part == "meeting":
        return ranks.meet(size, kind == "lazy")
    if settings.part == "store":
        with tempfile.TemporaryDirectory(prefix="sgoif-scale-", dir=settings.folder) as folder:
            return measure_store(size, Path(folder), kind)
    if kind == "examples":
        return {"sweep": kind, **measure_examples(replace(SHAPES[kind], examples=size))}
    axis = "classes" if kind == "small" else kind
    return {"sweep": kind, **measure_step(replace(SHAPES[kind], **{axis: size}), settings.blocks)}


def measure_step(shape: Shape, blocks: int) -> dict[str, Any]:
    """One point of the curves against K and d."""
    watched = Loop(shape)
    period = watched.monitor.plan.refresh_every  # type: ignore[union-attr]
    ratio = None
    if shape.classes <= _MANY:
        steps = {"bare": Loop(shape, is_watched=False).step, "watched": watched.step}
        timings = alternate(steps, blocks=blocks, steps_per_block=period, warmup=5, clock=time.process_time, turn=1)
        ratio = timings.summary()
    else:
        watched.run(period + 6)
    return {"shape": asdict(shape), "timing": ratio, **_cost(watched)}


def measure_examples(shape: Shape, steps: int = 61) -> dict[str, Any]:
    """One point of the curve against n: all ids are known already, or where they are too many, none is kept."""
    if shape.examples > 10**7:
        with tempfile.TemporaryDirectory() as folder:
            budget = sgoif.Budget(plan=sgoif.Plan(early_steps=0))
            watched = Loop(shape, peers=ranks.Declared(2), out=f"{folder}/run", budget=budget)
            _run_warm(watched, steps)
            assert watched.monitor is not None and watched.monitor.recorder.sink is not None
            watched.monitor.recorder.sink.close()
            return {"shape": asdict(shape), "keeps": "visits on disk, rank 0 of 2 declared", **_cost(watched)}
    watched = Loop(shape)
    watched.run(2)
    assert watched.monitor is not None
    watched.monitor.recorder.index.add(np.arange(shape.examples))  # as after an epoch
    _run_warm(watched, steps)
    return {"shape": asdict(shape), "keeps": "evidence in memory", **_cost(watched)}


def _run_warm(watched: Loop, steps: int) -> None:
    """Time some steps after a whole period, in which memory is taken for all examples and libraries are loaded."""
    assert watched.monitor is not None
    watched.run(watched.monitor.plan.refresh_every + 1)
    watched.timer.steps.clear()
    watched.run(steps)


def _cost(watched: Loop) -> dict[str, Any]:
    monitor = watched.monitor
    assert monitor is not None and monitor.faults == {}
    return {"own_s": watched.own_seconds()}


def measure_store(rows: int, folder: Path, kind: str) -> dict[str, Any]:
    """Write so many visits, ask for the 1,000 most harmful, and add them up where they are not too many.

    Each of the three in a process of its own, of which the peak memory is taken.
    """
    found = {"rows": rows, "ids": kind, "write": run_in_process(write, str(folder), rows, kind)}
    files = list(folder.rglob("*.parquet"))
    found |= {"bytes_per_row": sum(path.stat().st_size for path in files) / rows, "parts": len(files)}
    found["query"] = run_in_process(query, str(folder))
    return {**found, "merge": run_in_process(merge, str(folder))} if rows <= _MERGED else found


def write(target: str, rows: int, kind: str) -> dict[str, float]:
    """Signals come from a pool of a million rows, ids are drawn anew: no row twice, or it would compress as no run."""
    pool = [visits(np.arange(_STEP_ROWS), step, np.random.default_rng(step)) for step in range(_POOL)]
    rng, spent, making = np.random.default_rng(0), time.process_time(), 0.0
    sink = ParquetSink(target)
    for step in range(rows // _STEP_ROWS):
        begun, batch = time.thread_time(), pool[step % _POOL]
        ids = name_ids(rng.integers(0, _IDS, _STEP_ROWS), kind, 99_991, 10)
        batch = ScoreBatch(ids, batch.given_labels, step, 0, 0, 0, 0, batch.columns)
        making += time.thread_time() - begun
        sink.write(batch)
    sink.close()
    spent = time.process_time() - spent - making
    assert sink.faults == {} and sink.num_rows == rows, (sink.faults, sink.num_rows)
    return {"rows_per_cpu_s": rows / spent, "peak_mb": peak_mb()}


def merge(target: str) -> dict[str, float]:
    files, examples, held = RunFiles(target), 0, 0
    spent = time.process_time()
    for found in merge_evidence(files):
        examples += len(found["id"])
        held += sum(column.nbytes for column in found.values())
    spent = time.process_time() - spent
    rows = sum(part.num_rows for part in files.parts("visits"))
    rates = {"rows_per_cpu_s": rows / spent, "examples": examples, "bytes_per_example": held / max(examples, 1)}
    return {**rates, "peak_mb": peak_mb()}


_SWEEPS = {"examples": "n", "classes": "K", "width": "d"}


def _rows(part: str, *names: str) -> list[Run]:
    """The last row of each point of a part; its names tell points apart."""
    found = latest("scale.jsonl", key=lambda run: (run["settings"]["part"], *(str(run.get(name)) for name in names)))
    return [run for run in found if run["settings"]["part"] == part]


def step_table() -> str:
    """The monitor's processor time per step by part, beside the bare step."""
    rows = []
    points = _rows("step", "sweep", "shape")
    for run in sorted(points, key=lambda run: (list(_SWEEPS).index(run["sweep"]), run["shape"][run["sweep"]])):
        shape, own = run["shape"], run["own_s"]
        point = f"{_SWEEPS[run['sweep']]} = {shape[run['sweep']]:,}"
        ratio = f"{run['timing']['watched']['ratio']:.2f}" if run.get("timing") else ""
        parts = [_short(1e3 * own[name]) for name in ("scoring", "curvature", "refresh")]
        rows.append([point, *parts, ratio])
    return table(("", "scoring, ms", "curvature", "refreshes", "step over bare"), rows)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def ranks_table() -> str:
    """Bytes of one rank's buffers per step: real and declared, with a tiny and a large head."""
    cells: dict[int, dict[str, Run]] = {}
    for run in _rows("ranks", "kind", "ranks", "shape"):
        kind = run["kind"] if run["shape"]["classes"] < 1000 else "large"
        cells.setdefault(run["ranks"], {})[kind] = run
    rows = []
    for size, kinds in sorted(cells.items()):
        bytes_of = {kind: f"{run['bytes_per_step'] / 1e3:,.1f}" for kind, run in kinds.items()}
        waited = kinds.get("real")
        took = "" if waited is None else f"{1e3 * waited['seconds_per_exchange']:.2g}"
        rows.append([f"{size:,}", *(bytes_of.get(kind, "") for kind in ("real", "declared", "large")), took])
    return table(("ranks", "real, KB a step", "declared", "declared, K = 1,000, d = 1,024", "ms an exchange"), rows)


def meeting_table() -> str:
    """Joining a group with sockets made at once and when they are used, and its smallest exchange."""
    found = {(run["ranks"], run["is_lazy"]): run for run in _rows("meeting", "ranks", "is_lazy")}
    rows = []
    for size in sorted({size for size, _ in found}):
        pair = [found[size, is_lazy] for is_lazy in (False, True)]
        told = {"join_s": ".2f", "sockets": "d"}
        cells = [" / ".join(f"{run[name]:{form}}" for run in pair) for name, form in told.items()]
        rows.append([f"{size}", *cells, " / ".join(f"{1e3 * run['meet_cpu_s']:.1f}" for run in pair)])
    return table(("ranks", "s to join: at once / when used", "open files", "CPU ms of a meeting"), rows)


def store_table() -> str:
    """Writing, asking and adding up."""
    rows = []
    for run in _rows("store", "rows", "ids"):
        merge = run.get("merge")
        added = (
            ["", ""] if merge is None else [f"{1e6 / merge['rows_per_cpu_s']:.1f}", f"{merge['bytes_per_example']:.0f}"]
        )
        peaks = [run[name]["peak_mb"] for name in ("write", "query", "merge") if name in run]
        numbers = [f"{run['bytes_per_row']:.0f}", f"{run['write']['rows_per_cpu_s']:,.0f}"]
        numbers += [f"{run['query']['cpu_s']:.1f}", *added, " / ".join(f"{peak:.0f}" for peak in peaks)]
        rows.append([f"{run['rows']:,}, {run['ids']}", *numbers])
    header = (
        "visits, ids",
        "bytes a visit",
        "written per CPU s",
        "query, CPU s",
        "CPU s to add up 10^6",
        "bytes an example",
    )
    return table((*header, "peak MiB: write / query / add up"), rows)


SCALE = Experiment(
    name="scale",
    settings=Settings,
    run=measure,
    unrecorded=("seed", "folder"),
    tables={
        "scale_step": step_table,
        "scale_ranks": ranks_table,
        "scale_meeting": meeting_table,
        "scale_store": store_table,
    },
    full=[
        {"kind": "classes", "size": [10, 100, 1000, 10_000]},
        {"kind": "width", "size": [128, 512, 1024, 2048, 4096]},
        {"kind": "examples", "size": [10**4, 10**6, 10**9]},
        {"part": "ranks", "kind": ["declared", "large"], "size": [2, 4, 8, 64, 256, 512, 1024]},
        {"part": "ranks", "kind": "real", "size": [2, 4, 8]},
        {"part": "meeting", "kind": ["eager", "lazy"], "size": [2, 4, 8, 16, 32, 64]},
        {"part": "store", "kind": "int", "size": [10**6, 10**7, 10**8]},
        {"part": "store", "kind": "string", "size": 10**6},
    ],
    small=[
        {"kind": "small", "blocks": 2},
        {"part": "ranks", "kind": "declared", "size": 8},
        {"part": "meeting", "kind": "eager", "size": 2},
        {"part": "store", "kind": "int", "size": 20_000},
    ],
)
