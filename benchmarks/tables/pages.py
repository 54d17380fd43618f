"""Where tables stand: between two marker lines of a page of the docs, each on one page."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

from benchmarks.experiment import EXPERIMENTS, load
from benchmarks.large import dry_run
from benchmarks.tables.bars import bars

__all__ = ["FOLDER", "pages", "places_of", "rewrite", "tables"]

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"

_PLACE = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


@cache
def tables() -> Mapping[str, Callable[[], str]]:
    """The makers of all tables, by their markers."""
    measured = {name: make for each in map(load, EXPERIMENTS) for name, make in each.tables.items()}
    return {"bars": bars, "tier_g": dry_run.read_table, **measured}


def pages() -> Sequence[Path]:
    """The pages of the docs that have tables."""
    return [path for path in sorted(FOLDER.parent.rglob("*.md")) if places_of(path.read_text())]


def places_of(page: str) -> list[str]:
    """The tables that a page has a place for."""
    return [match[2] for match in _PLACE.finditer(page)]


def rewrite(page: str) -> str:
    """The page with every table between its markers made anew."""
    return _PLACE.sub(lambda match: f"{match[1]}{tables()[match[2]]()}\n{match[3]}", page)
