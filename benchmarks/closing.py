"""What it takes to close a run of many examples: ``python -m benchmarks.closing``, last line ``closing_bars_missed N``.

A small real training gives canaries; the visits are made up, one per example, and lie on the disk as several ranks
leave them. Closing adds them up, learns probabilities and writes the table of examples, in a process of its own: time
and peak memory, which must not grow with the run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import sgoif
from benchmarks import timing
from benchmarks.records import append_result
from benchmarks.store import write_many
from sgoif.store.deferred import DeferredSink

PEAK_BAR_MB = 2048.0
CLASSES = 10


def watched() -> Any:
    """A monitor after a short training, whose hold-out has been looked at."""
    torch.manual_seed(0)
    centres = torch.randn(CLASSES, 32)
    labels = torch.randint(0, CLASSES, (4000,))
    inputs = centres[labels] + torch.randn(4000, 32)
    model = torch.nn.Linear(32, CLASSES)
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


def close_child(url: str) -> None:
    """Close a run whose visits are there, and tell what that took."""
    monitor = watched()
    sink = DeferredSink(url)
    sink.resume(10**9)  # nothing of what is there is superseded
    monitor.recorder.sink, monitor.recorder.keeps_evidence = sink, False
    before, begun, busy = timing._peak_mb(), time.perf_counter(), time.process_time()
    run = monitor.close()
    seconds, cpu_s = time.perf_counter() - begun, time.process_time() - busy
    facts = {name: run.info.get(name) for name in ("num_examples", "calibrated_on", "expected_errors", "state")}
    print(json.dumps({"seconds": seconds, "cpu_s": cpu_s, "before_mb": before, "peak_mb": timing._peak_mb(), **facts}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=20_000_000)
    parser.add_argument("--folder", type=Path, help="for the run, about 130 bytes an example; temporary by default")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--save", help="append to benchmarks/results/NAME")
    options = parser.parse_args()
    if options.child:
        return close_child(options.child)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        target, parts = Path(folder) / "run", -(-options.examples // 600_000)
        write_many(target, parts * 600_000, different=parts)  # ids of 10^9: few come twice
        command = [sys.executable, "-m", "benchmarks.closing", "--child", str(target)]
        done = subprocess.run(command, cwd=Path(__file__).resolve().parents[1], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        found = json.loads(done.stdout.splitlines()[-1])
    met = found["peak_mb"] < PEAK_BAR_MB and found["state"] == "finished"
    print(f"close, {found['num_examples']:,} examples: peak {found['peak_mb']:.0f} MiB", end="")
    print(f", {found['seconds']:.0f} s by the clock, {found['cpu_s']:.0f} s of one core")
    if options.save:
        settings = {"examples": options.examples}
        append_result(options.save, {"benchmark": "closing", "settings": settings, "seed": 0, "met": met, **found})
    print(f"closing_bars_missed {int(not met)}")


if __name__ == "__main__":
    main()
