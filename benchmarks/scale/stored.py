"""The store against the number of visits: written through the sink, asked in SQL, added up by example.

Each of the three runs in a process of its own, of which the peak memory is taken. Signals come from a pool of a million
rows, ids are drawn anew: a part has no row twice, or it would compress as no run does.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import timing
from benchmarks.store import query_child, visits
from sgoif.records import ScoreBatch
from sgoif.store import ParquetSink, RunFiles, merge_evidence

__all__ = ["measure"]

_STEP_ROWS, _POOL = 5000, 200
_IDS = 2 * 10**9


def measure(rows: int, folder: Path, kind: str = "int", merge_up_to: int = 10**7) -> dict[str, Any]:
    """Write so many visits, ask for the 1,000 most harmful, and add them up where they are not too many."""
    target = folder / f"{kind}-{rows}"
    found = {"rows": rows, "ids": kind, "write": _child("write", target, rows, kind)}
    files = list(target.rglob("*.parquet"))
    found["bytes_per_row"] = sum(path.stat().st_size for path in files) / rows
    found["parts"] = len(files)
    found["query"] = _child("query", target)
    if rows <= merge_up_to:
        found["merge"] = _child("merge", target)
    shutil.rmtree(target)
    return found


def _child(name: str, target: Path, rows: int = 0, kind: str = "int") -> dict[str, Any]:
    options = ["--child", name, "--target", str(target), "--rows", str(rows), "--ids", kind]
    command = [sys.executable, "-m", "benchmarks.scale.stored", *options]
    done = subprocess.run(command, cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def write_child(target: str, rows: int, kind: str) -> None:
    pool = [visits(np.arange(_STEP_ROWS), step, np.random.default_rng(step)) for step in range(_POOL)]
    rng, spent, making = np.random.default_rng(0), time.process_time(), 0.0
    sink = ParquetSink(target)
    for step in range(rows // _STEP_ROWS):
        begun = time.thread_time()
        batch = _renamed(pool[step % _POOL], rng.integers(0, _IDS, _STEP_ROWS), step, kind)
        making += time.thread_time() - begun
        sink.write(batch)
    sink.close()
    spent = time.process_time() - spent - making
    assert sink.faults == {} and sink.num_rows == rows, (sink.faults, sink.num_rows)
    print(json.dumps({"rows_per_cpu_s": rows / spent, "peak_mb": timing._peak_mb()}))


def _renamed(batch: ScoreBatch, ids: np.ndarray[Any, Any], step: int, kind: str) -> ScoreBatch:
    named = ids if kind == "int" else np.array([f"shard-{i % 99_991:05d}.tar/{i:010d}.jpg" for i in ids])
    return ScoreBatch(named, batch.given_labels, step, 0, 0, 0, 0, batch.columns)


def merge_child(target: str) -> None:
    files, examples, held = RunFiles(target), 0, 0
    spent = time.process_time()
    for found in merge_evidence(files):
        examples += len(found["id"])
        held += sum(column.nbytes for column in found.values())
    spent = time.process_time() - spent
    rows = sum(part.num_rows for part in files.parts("visits"))
    told = {"rows_per_cpu_s": rows / spent, "examples": examples, "bytes_per_example": held / max(examples, 1)}
    print(json.dumps({**told, "peak_mb": timing._peak_mb()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", choices=["write", "query", "merge"], required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--ids", default="int")
    options = parser.parse_args()
    if options.child == "write":
        write_child(options.target, options.rows, options.ids)
    elif options.child == "query":
        query_child(options.target)
    else:
        merge_child(options.target)


if __name__ == "__main__":
    main()
