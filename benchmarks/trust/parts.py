"""What influence, curvature and tracking are worth in a scan: every signal of one run, on cells of the trust grid.

A scan's probabilities come from cross-fitted heads and the noise that explains the labels best; influences are measured
beside them and do not enter. So one run gives the ranking by probability and by each influence, without curvature and
solved anew instead of tracked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from benchmarks.experiment import Experiment
from benchmarks.metrics import average_precision
from benchmarks.tables.rows import latest, means, table
from benchmarks.trust.cells import REPORTED, Cell
from benchmarks.trust.draws import draw
from sgoif.scanning.frozen import audit_embeddings
from sgoif.scanning.holdout import choose_holdout

SIGNALS = {
    "p_mislabeled": "`p_mislabeled`",
    "loss": "loss out of fold",
    "harm": "`harm`",
    "worst": "`worst`",
    "harm_identity": "`harm`, no curvature",
    "worst_identity": "`worst`, no curvature",
    "harm_solved": "`harm`, solved once",
    "worst_solved": "`worst`, solved once",
}
_MOST = 5_000  # examples; larger cells take minutes each
_GROUPS: dict[str, Callable[[str, float], bool]] = {
    "uniform and human errors, at most 5%": lambda kind, rate: kind in ("sym", "human") and rate <= 0.05,
    "uniform and human errors, 10% to 40%": lambda kind, rate: kind in ("sym", "human") and rate > 0.05,
    "one class for another, 3% to 20%": lambda kind, rate: kind == "pair",
    "by appearance, 5% and 20%": lambda kind, rate: kind == "idn",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup(Cell):
    """One draw of a cell."""

    seed: int = 1


def examine(setup: Setup) -> dict[str, Any]:
    """Scan one draw, and rank the examples outside the hold-out by every signal."""
    np.random.seed(setup.seed)
    drawn = draw(Cell(*(getattr(setup, field.name) for field in fields(Cell))), setup.seed)
    ids = np.arange(len(drawn.given))
    held = choose_holdout(ids, drawn.given, drawn.num_classes)
    run = audit_embeddings(drawn.rows, drawn.given, ids, held, num_classes=drawn.num_classes, seed=setup.seed)
    columns = run.table
    wrong = drawn.wrong[columns["id"].astype(np.int64)]
    ranked = {name: np.nan_to_num(columns[name].astype(np.float64), nan=-np.inf) for name in SIGNALS}
    aps = {name: 100 * average_precision(values, wrong) for name, values in ranked.items()}
    return {"examples": len(wrong), "errors": int(wrong.sum()), "ap": aps}


def parts() -> str:
    """Mean AP of every signal, by kind of noise."""
    runs = latest("trust_parts.jsonl")
    rows = []
    for name, said in SIGNALS.items():
        cells = [said]
        for belongs in _GROUPS.values():
            mine = [run["ap"][name] for run in runs if belongs(*_noise(run["settings"]["noise"]))]
            cells.append(means(mine) if mine else "not run")
        rows.append(cells)
    sizes = (sum(belongs(*_noise(run["settings"]["noise"])) for run in runs) for belongs in _GROUPS.values())
    return table(["ranked by", *(f"{group} ({size} draws)" for group, size in zip(_GROUPS, sizes))], rows)


def _noise(text: str) -> tuple[str, float]:
    kind, _, rate = text.partition("-")
    return kind, float(rate) / 100


def describe(row: Mapping[str, Any]) -> str:
    """One draw in a line."""
    return f"{row['errors']} errors, AP " + ", ".join(f"{name} {ap:.1f}" for name, ap in row["ap"].items())


def _is_asked(cell: Cell) -> bool:
    return cell.noise != "clean" and cell.expects == "competent" and cell.num_examples <= _MOST


EXPERIMENT = Experiment(
    name="trust_parts",
    settings=Setup,
    run=examine,
    tables={"trust_parts": parts},
    full=[asdict(cell) for cell in sorted(filter(_is_asked, REPORTED), key=lambda cell: cell.cost)],
    small={"data": "wine", "noise": "pair-20", "size": 0},
    describe=describe,
)
