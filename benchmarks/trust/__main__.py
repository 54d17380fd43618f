"""The trust grid: ``python -m benchmarks.trust --tier S|M``.

Tier S tries the small tables of scikit-learn, one seed, in seconds. Tier M runs every reported cell at seeds 1 to 5 (or
``--group development`` at seeds 31 and 32), two at a time in two processes with ``--part 0/2`` and ``--part 1/2``; a
stopped run goes on where it was.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch

from benchmarks.records import append_result, is_recorded
from benchmarks.trust import ours
from benchmarks.trust.cells import SMALL, Cell, find_cells
from benchmarks.trust.draws import draw
from benchmarks.trust.measure import measure
from benchmarks.trust.rivals import find_all, make_folds

SEEDS = {"reported": (1, 2, 3, 4, 5), "development": (31, 32)}


def examine(cell: Cell, seed: int, *, with_rivals: bool = True) -> dict[str, Any]:
    """Run all methods on one draw of a cell."""
    torch.set_num_threads(1)
    drawn = draw(cell, seed)
    found = {"ours": ours.find(drawn.rows, drawn.given, drawn.num_classes, seed)}
    if with_rivals:
        found |= find_all(drawn.rows, drawn.given, drawn.num_classes, make_folds(drawn.given, seed))
    return {
        "examples": len(drawn.given),
        "errors": int(drawn.wrong.sum()),
        "report": {name: measure(item, drawn) for name, item in found.items()},
    }


def show(cell: Cell, seed: int, result: dict[str, Any]) -> None:
    """Print one draw in a line or two."""
    report = result["report"]
    aps = {name: item["ap"] for name, item in report.items() if item.get("ap") is not None}
    best = max((name for name in aps if name != "ours"), key=lambda name: aps[name], default=None)
    mine = report["ours"]
    said = f"AP {aps['ours']:.1f}, best rival {aps[best]:.1f} ({best})" if best is not None else "no errors planted"
    total = "-" if mine["total"] is None else f"{mine['total']:.0f}"
    flags = f"{mine.get('num_flagged')} flagged, {mine.get('flag_precision', float('nan')):.0f}% right"
    print(f"{cell.name} seed {seed}: {said}; {result['errors']} errors, claimed {total}; {flags}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tier", choices=["S", "M"], default="S")
    parser.add_argument("--group", choices=list(SEEDS), default="reported")
    parser.add_argument("--only", nargs="+", default=[], help="cells whose name begins with one of these")
    parser.add_argument("--seeds", help="such as 1,2,3")
    parser.add_argument("--part", default="0/1", help="which share of the cells, such as 0/2")
    parser.add_argument("--method", default="today", help="name of what is measured, kept in the result")
    parser.add_argument("--no-rivals", action="store_true")
    parser.add_argument("--save", metavar="FILE")
    options = parser.parse_args()
    is_small = options.tier == "S"
    cells = find_cells(options.group, tuple(options.only or (SMALL if is_small else ())))
    seeds = [int(s) for s in options.seeds.split(",")] if options.seeds else list(SEEDS[options.group])
    number, _, parts = options.part.partition("/")
    cells = [cell for place, cell in enumerate(cells) if place % int(parts) == int(number)]
    for cell in cells:
        for seed in seeds[:1] if is_small else seeds:
            settings = {**cell.settings(), "group": options.group, "method": options.method}
            if options.save and is_recorded(options.save, settings, seed):
                continue
            np.random.seed(seed)
            result = examine(cell, seed, with_rivals=not options.no_rivals)
            show(cell, seed, result)
            if options.save:
                append_result(options.save, {"benchmark": "trust", "settings": settings, "seed": seed, **result})


if __name__ == "__main__":
    main()
