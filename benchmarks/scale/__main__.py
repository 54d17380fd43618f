"""Measure how cost grows, and reckon what a large run costs: ``python -m benchmarks.scale --save scale.jsonl``.

step     seconds of the monitor against examples, classes and inputs of the head; ratio to the bare step; forecast
ranks    bytes and seconds of exchanges by real ranks, bytes by declared ones
meeting  joining a group of ours, and its smallest exchange, against the number of ranks
store    writing, asking and adding up visits: rates, bytes and peak memory against their number
plan     ViT-L/16 over 2 x 10^9 pictures: from the rows of the others and the assumptions given as options

What scoring by a snapshot takes is measured by ``python -m benchmarks.scoring``; its rows are read from there.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.records import append_result
from benchmarks.scale import meeting, plan, ranks, step, stored
from benchmarks.scale.assumptions import Assumptions, add_options, from_options

Rows = Iterable[dict[str, Any]]


def small(folder: Path) -> dict[str, Callable[[], Rows]]:
    """Every part once, on sizes that mean nothing."""
    return {
        "step": lambda: [{"sweep": "small", **step.measure(step.SMALL, blocks=2)}],
        "ranks": lambda: [ranks.declared(ranks.TINY, 8)],
        "meeting": lambda: [meeting.meet(2)],
        "store": lambda: [stored.measure(20_000, folder)],
        "plan": lambda: plan.rows(Assumptions(), plan.CASES[:1]),
    }


def full(options: argparse.Namespace, folder: Path) -> dict[str, Callable[[], Rows]]:
    return {
        "step": lambda: step.curves(options.sweeps, options.blocks),
        "ranks": lambda: ranks.curve(ranks.REAL, ranks.DECLARED),
        "meeting": lambda: (meeting.meet(size, lazy) for lazy in (False, True) for size in meeting.SIZES),
        "store": lambda: (stored.measure(rows, folder, kind) for rows, kind in options.rows),
        "plan": lambda: plan.rows(from_options(options)),
    }


def rows_of(text: str) -> tuple[int, str]:
    """Read ``1e6`` or ``1e6:string``."""
    count, _, kind = text.partition(":")
    return int(float(count)), kind or "int"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ("step", "ranks", "meeting", "store", "plan")
    parser.add_argument("--part", nargs="+", choices=names, default=list(names))
    parser.add_argument("--tier", choices=["S", "M"], default="M", help="S: every part once, in seconds")
    parser.add_argument("--sweeps", nargs="+", choices=list(step.SWEEPS), default=list(step.SWEEPS))
    parser.add_argument("--blocks", type=int, default=4, help="of a refresh period each, per variant (even)")
    visits = [rows_of(text) for text in ("1e6", "1e6:string", "1e7", "1e8")]
    parser.add_argument("--rows", nargs="+", type=rows_of, default=visits, help="visits, as 1e6 or 1e6:string")
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder if not given")
    parser.add_argument("--save", metavar="FILE")
    add_options(parser)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="sgoif-scale-", dir=options.folder) as name:
        makers = small(Path(name)) if options.tier == "S" else full(options, Path(name))
        for part in [part for part in options.part if part in makers]:
            for row in makers[part]():
                print(part, json.dumps(row), flush=True)
                if options.save:
                    append_result(options.save, {"benchmark": "scale", "settings": {"part": part}, "seed": 0, **row})


if __name__ == "__main__":
    main()
