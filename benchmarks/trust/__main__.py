"""The trust grid: ``python -m benchmarks.trust --tier S|M``, and ``--real`` for errors that people confirmed.

Tier S tries the small tables of scikit-learn, one seed, in seconds. Tier M runs every reported cell at seeds 1 to 5 (or
``--group development`` at seeds 31 and 32), the cheapest first. ``--save FILE.jsonl`` keeps our figures there and those
of the rivals in ``FILE_rivals.jsonl``: rivals run once per cell and seed, a changed method of ours runs alone under
another ``--method`` name. What is saved already is not run again, so a stopped run goes on where it was.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch

from benchmarks.records import append_result, is_recorded
from benchmarks.trust import ours, verdicts
from benchmarks.trust.cells import SMALL, Cell, find_cells
from benchmarks.trust.draws import Draw, draw
from benchmarks.trust.measure import measure
from benchmarks.trust.rivals import Finding, find_all, make_folds

SEEDS = {"reported": (1, 2, 3, 4, 5), "development": (31, 32)}
RIVALS = "rivals"


def examine(cell: Cell, seed: int, method: str) -> dict[str, Any]:
    """Run our method, or all rivals, on one draw of a cell."""
    torch.set_num_threads(1)
    np.random.seed(seed)
    drawn = draw(cell, seed)
    report = {name: measure(item, drawn) for name, item in _find(drawn, seed, method).items()}
    for name, figures in report.items():
        if name != "ours" and not name.endswith(", self_confidence"):  # the order behind cleanlab's flags
            figures.pop("recall_at_precision", None)
    return {"examples": len(drawn.given), "errors": int(drawn.wrong.sum()), "report": report}


def _find(drawn: Draw, seed: int, method: str) -> dict[str, Finding]:
    if method == RIVALS:
        return find_all(drawn.rows, drawn.given, drawn.num_classes, make_folds(drawn.given, seed))
    return {"ours": ours.find(drawn.rows, drawn.given, drawn.num_classes, seed)}


def describe(name: str, seed: int, method: str, result: dict[str, Any]) -> str:
    """One draw in a line."""
    aps = {name: item["ap"] for name, item in result["report"].items() if item.get("ap") is not None}
    best = max(aps, key=lambda name: aps[name], default=None)
    said = f"AP {aps[best]:.1f} ({best})" if best is not None else "no errors planted"
    if method != RIVALS:
        mine = result["report"]["ours"]
        total = "no total" if mine["total"] is None else f"claimed {mine['total']:.0f}"
        right = f", {mine['flag_precision']:.0f}% right" if mine.get("flag_precision") is not None else ""
        said += f", {total}, {mine.get('num_flagged', 0)} flagged{right}, {mine['seconds']:.0f} s"
    return f"{name} seed {seed}, {method}: {result['errors']} errors, {said}"


def rivals_file(file: str) -> str:
    """Where the rivals' figures stand, beside ours."""
    return f"{file.removesuffix('.jsonl')}_{RIVALS}.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tier", choices=["S", "M"], default="S")
    parser.add_argument("--real", action="store_true", help="test labels that people judged, instead of planted errors")
    parser.add_argument("--group", choices=list(SEEDS), default="reported")
    parser.add_argument("--only", nargs="+", default=[], help="cells whose name begins with one of these")
    parser.add_argument("--up-to", type=int, default=10**9, help="only cells of at most so many examples")
    parser.add_argument("--seeds", help="such as 1,2,3")
    parser.add_argument("--method", default="today", help="name of what is measured, kept in the result")
    parser.add_argument("--no-rivals", action="store_true", help="run only our method")
    parser.add_argument("--only-rivals", action="store_true", help="run only the rivals")
    parser.add_argument("--save", metavar="FILE")
    options = parser.parse_args()
    methods = [options.method] * (not options.only_rivals) + [RIVALS] * (not options.no_rivals)
    seeds = [int(seed) for seed in options.seeds.split(",")] if options.seeds else []
    if options.real:
        verdicts.run(methods, tuple(options.only), options.save, seeds or verdicts.SEEDS)
        return
    is_small = options.tier == "S"
    cells = find_cells(options.group, tuple(options.only or (SMALL if is_small else ())))
    for cell in sorted((cell for cell in cells if cell.num_examples <= options.up_to), key=lambda cell: cell.cost):
        for seed in (seeds or SEEDS[options.group])[: 1 if is_small else None]:
            for method in methods:
                run_cell(cell, seed, method, options.group, options.save)


def run_cell(cell: Cell, seed: int, method: str, group: str, save: str | None) -> None:
    """Run and print one draw, and keep it; nothing is run that is kept already."""
    settings = {**cell.settings(), "group": group, "method": method}
    file = None if save is None else rivals_file(save) if method == RIVALS else save
    if file is not None and is_recorded(file, settings, seed):
        return
    result = examine(cell, seed, method)
    print(describe(cell.name, seed, method, result), flush=True)
    if file is not None:
        append_result(file, {"benchmark": "trust", "settings": settings, "seed": seed, **result})


if __name__ == "__main__":
    main()
