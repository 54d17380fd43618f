"""Where tables stand: between two marker lines of a page of the docs, each on one page."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

from benchmarks import run
from benchmarks.experiment import EXPERIMENTS, load
from benchmarks.tables import (
    bars,
    cleaning,
    cost,
    faithfulness,
    faults,
    frozen,
    scale,
    shift,
    training,
    unlearning,
)

__all__ = ["FOLDER", "pages", "places_of", "rewritten", "tables"]

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"

_OLD: Mapping[str, Callable[[], str]] = {
    "bars": bars.bars,
    "rivals": training.rivals,
    "scan": frozen.scan,
    "review": cleaning.review,
    "overhead": cost.overhead,
    "faithfulness": faithfulness.faithfulness,
    "faults": faults.faults,
    "scale_step": scale.step,
    "scale_ranks": scale.ranks,
    "scale_meeting": scale.meeting,
    "scale_store": scale.store,
    "scale_plan": scale.plan,
    "shift_alarms": shift.alarms,
    "shift_delays": shift.delays,
    "unlearning": unlearning.convex,
    "unlearning_anchors": unlearning.anchors,
    "unlearning_steps": unlearning.steps,
    "unlearning_network": unlearning.network,
}

_PLACE = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


@cache
def tables() -> Mapping[str, Callable[[], str]]:
    """The makers of all tables, by their markers."""
    moved = [load(name) for name in EXPERIMENTS if name not in run.TABLES]
    return {**_OLD, **{name: make for experiment in moved for name, make in experiment.tables.items()}}


def pages() -> Sequence[Path]:
    """The pages of the docs that have tables."""
    return [path for path in sorted(FOLDER.parent.rglob("*.md")) if places_of(path.read_text())]


def places_of(page: str) -> list[str]:
    """The tables that a page has a place for."""
    return [match[2] for match in _PLACE.finditer(page)]


def rewritten(page: str) -> str:
    """The page with every table between its markers made anew."""
    return _PLACE.sub(lambda match: f"{match[1]}{tables()[match[2]]()}\n{match[3]}", page)
