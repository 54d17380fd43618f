"""The trust grid: label errors at the rates that people have, in small sets, many classes, weak features.

Our figures are kept in ``trust.jsonl`` and those of the rivals in ``trust_rivals.jsonl``: rivals run once per cell and
seed, a changed method of ours runs alone under another ``--method`` name. The cheapest cells come first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from benchmarks.experiment import Experiment
from benchmarks.trust import bars, ours, tables
from benchmarks.trust.cells import DEVELOPMENT, REPORTED, Cell
from benchmarks.trust.draws import Draw, draw
from benchmarks.trust.measure import measure
from benchmarks.trust.rivals import Finding, find_all, make_folds


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup(Cell):
    """One draw of a cell, judged by our method of this name, or by all rivals."""

    group: str = "reported"
    method: str = tables.NEW
    seed: int = 1

    @property
    def cell(self) -> Cell:
        return Cell(*(getattr(self, field.name) for field in fields(Cell)))


def examine(setup: Setup) -> dict[str, Any]:
    """Run our method, or all rivals, on one draw of a cell."""
    np.random.seed(setup.seed)
    drawn = draw(setup.cell, setup.seed)
    report = {name: measure(item, drawn) for name, item in _find(drawn, setup.seed, setup.method).items()}
    for name, figures in report.items():
        if name != "ours" and not name.endswith(", self_confidence"):  # the order behind cleanlab's flags
            figures.pop("recall_at_precision", None)
    return {"examples": len(drawn.given), "errors": int(drawn.wrong.sum()), "report": report}


def _find(drawn: Draw, seed: int, method: str) -> dict[str, Finding]:
    if method == tables.RIVALS:
        return find_all(drawn.rows, drawn.given, drawn.num_classes, make_folds(drawn.given, seed))
    return {"ours": ours.find(drawn.rows, drawn.given, drawn.num_classes, seed)}


def describe(row: Mapping[str, Any]) -> str:
    """One draw in a line."""
    aps = {name: item["ap"] for name, item in row["report"].items() if item.get("ap") is not None}
    best = max(aps, key=lambda name: aps[name], default=None)
    said = f"AP {aps[best]:.1f} ({best})" if best is not None else "no errors planted"
    if "ours" in row["report"]:
        mine = row["report"]["ours"]
        total = "no total" if mine["total"] is None else f"claimed {mine['total']:.0f}"
        right = f", {mine['flag_precision']:.0f}% right" if mine.get("flag_precision") is not None else ""
        said += f", {total}, {mine.get('num_flagged', 0)} flagged{right}, {mine['seconds']:.0f} s"
    return f"{row['errors']} errors, {said}"


def _grids(group: str, cells: Sequence[Cell], **settings: Any) -> list[dict[str, Any]]:
    return [{**asdict(cell), "group": group, **settings} for cell in sorted(cells, key=lambda cell: cell.cost)]


_SHARED: Mapping[str, Any] = {
    "settings": Setup,
    "run": examine,
    "benchmark": "trust",
    "needs": ("cleanlab",),
    "describe": describe,
}
_SEEDS = (1, 2, 3, 4, 5)
_SMALL = {"data": "wine", "noise": ("clean", "pair-20"), "size": 0}

OURS = Experiment(
    name="trust",
    tables={
        "trust_today": tables.today,
        "trust_bars": bars.bars,
        "trust_ranking": tables.ranking,
        "trust_flags": tables.flags,
        "trust_cost": tables.cost,
    },
    full=_grids("reported", REPORTED, seed=_SEEDS),
    small=_SMALL,
    **_SHARED,
)
RIVALS = Experiment(
    name="trust_rivals",
    full=_grids("reported", REPORTED, seed=_SEEDS, method=tables.RIVALS),
    small={**_SMALL, "method": tables.RIVALS},
    **_SHARED,
)
TUNED = Experiment(
    name="trust_development",
    file="trust.jsonl",
    full=_grids("development", DEVELOPMENT, seed=(31, 32)),
    **_SHARED,
)
