"""Every cell, with the rule that tells weak features from wrong labels, and without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.experiment import FROZEN, Experiment
from benchmarks.trust.draws import Draw
from benchmarks.trust.measure import measure
from benchmarks.weakness import tables
from benchmarks.weakness.cells import DEVELOPMENT, REPORTED, Cell
from benchmarks.weakness.draws import draw
from benchmarks.weakness.judge import Said, judge

SURE = 0.9  # a lower end of p of so much is counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One draw of a cell."""

    data: str = "wine"
    noise: str = "clean"
    size: int = 0
    group: str = "reported"
    rule: bool = True
    seed: int = 0


def examine(setup: Setup) -> dict[str, Any]:
    """Judge one draw."""
    drawn = draw(setup.data, setup.noise, setup.size, setup.seed, is_dev=setup.group == "development")
    said = judge(drawn.rows, drawn.given, drawn.num_classes, rule=setup.rule)
    facts = {"examples": len(drawn.given), "errors": int(drawn.wrong.sum()), "kind": said.kind}
    evidence = None if said.evidence is None else round(said.evidence, 1)
    return {**facts, "evidence": evidence, "report": _figures(said, drawn)}


def _figures(said: Said, drawn: Draw) -> dict[str, Any]:
    figures = measure(said.finding, drawn)
    figures.pop("recall_at_precision", None)
    assert said.finding.flagged is not None
    flagged, sure = said.finding.flagged, np.nan_to_num(said.low) >= SURE
    figures["flags_right"] = int((flagged & drawn.wrong).sum())
    figures |= {"sure": int(sure.sum()), "sure_wrongly": int((sure & ~drawn.wrong).sum())}
    if (between := figures.get("rate_range")) is not None:
        between["holds"] = between["low"] <= between["true"] <= between["high"]
    return figures


def describe(row: Mapping[str, Any]) -> str:
    """One draw in a line."""
    figures, true = row["report"], row["errors"] / row["examples"]
    total, between = figures["total"], figures.get("rate_range")
    claimed = "no p" if total is None else f"{total / row['examples']:.1%}"
    if between is not None:
        missed = "" if between["holds"] else ", missed"
        claimed += f" ({between['low']:.1%} to {between['high']:.1%}{missed})"
    nats = "" if row["evidence"] is None else f", {row['evidence']:.1f} nats"
    ap = "" if figures.get("ap") is None else f", AP {figures['ap']:.1f}"
    flags = f"{figures['num_flagged']} flagged, {figures['flags_right']} right"
    sure = f"{figures['sure']} sure, {figures['sure_wrongly']} wrongly"
    return f"{true:.1%} wrong, {row['kind']}{nats}: {claimed}{ap}, {flags}, {sure}, {figures['seconds']:.0f} s"


def _grids(group: str, cells: Sequence[Cell]) -> list[dict[str, Any]]:
    return [
        {"data": c.data, "noise": c.noise, "size": c.size, "seed": c.seeds, "group": group, "rule": (True, False)}
        for c in cells
    ]


_SHARED: Mapping[str, Any] = {
    "settings": Setup,
    "run": examine,
    "benchmark": "weakness",
    "needs": FROZEN,
    "describe": describe,
}

REPORTS = Experiment(
    name="weakness",
    tables={"weakness": tables.totals, "weakness_cells": tables.cells},
    full=_grids("reported", REPORTED),
    small=_grids("development", (Cell("moons", "clean"), Cell("moons", "sym-10"))),
    **_SHARED,
)
TUNED = Experiment(
    name="weakness_development",
    file="weakness.jsonl",
    full=_grids("development", DEVELOPMENT),
    **_SHARED,
)
