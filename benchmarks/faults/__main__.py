"""Break everything, a few times each: ``python -m benchmarks.faults``, last line ``faults_not_as_promised N``."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.faults.disk import fill_disk
from benchmarks.faults.killed import kill_ranks
from benchmarks.faults.network import break_network
from benchmarks.faults.numbers import clock_child, spoil_numbers
from benchmarks.faults.subject import Row
from benchmarks.records import append_result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    names = ("kill", "disk", "network", "numbers")
    parser.add_argument("--part", nargs="+", choices=names, default=list(names))
    parser.add_argument("--times", type=int, help="how often each fault is tried; 30 kills and 3 of the others")
    parser.add_argument("--save", metavar="FILE")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.child:
        folder, clock, jumps = json.loads(options.child)
        return clock_child(Path(folder), Path(clock), jumps)
    not_as_promised = 0
    with tempfile.TemporaryDirectory(prefix="sgoif-faults-") as name:
        parts: dict[str, Callable[[], Iterable[Row]]] = {
            "kill": lambda: kill_ranks(Path(name) / "kill", options.times or 30),
            "disk": lambda: fill_disk(Path(name) / "disk", options.times or 3),
            "network": lambda: break_network(options.times or 3),
            "numbers": lambda: spoil_numbers(Path(name) / "numbers", options.times or 3),
        }
        for part in options.part:
            for row in parts[part]():
                print(f"{row.fault}, {row.tried} times: {row.outcome}", flush=True)
                not_as_promised += not row.met
                if options.save:
                    settings = {"part": part, "fault": row.fault}
                    append_result(options.save, {"benchmark": "faults", "settings": settings, "seed": 0, **asdict(row)})
    print(f"faults_not_as_promised {not_as_promised}")


if __name__ == "__main__":
    main()
