"""The trust grid: the order of labels, flags, totals, errors that people confirmed, and cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from benchmarks.tables.rows import Run, latest, table
from benchmarks.tables.trust_cells import NEW, TODAY, CellRuns, read_cells

__all__ = [
    "REAL_FILE",
    "SCALE_FILE",
    "cost",
    "cost_ratios",
    "flags",
    "mean_ap",
    "ranking",
    "real",
    "real_groups",
    "scale",
    "today",
]

REAL_FILE, SCALE_FILE = "trust_real.jsonl", "trust_scale.jsonl"
BASE = "logistic, self_confidence"  # whose seconds are those of a logistic regression and cleanlab


def _number(value: float | None, digits: int = 1, sign: str = "") -> str:
    return "-" if value is None or np.isnan(value) else f"{value:{sign}.{digits}f}"


def _rival(item: CellRuns) -> list[str]:
    best = item.best_rival
    if best is None:
        return ["-", "-"]
    gap = f"{np.mean(item.ahead):+.1f}" + (f" (worst {min(item.ahead):+.1f})" if len(item.ahead) > 1 else "")
    return [f"{np.mean(item.theirs(best)):.1f} ({best})", gap]


def _seeds(item: CellRuns) -> str:
    return ", ".join(map(str, item.seeds)) if len(item.seeds) < 3 else f"{item.seeds[0]}-{item.seeds[-1]}"


def today() -> str:
    """The method before the new estimator, beside the best rival of each cell."""
    rows = []
    for item in read_cells(TODAY):
        claimed = f"{_number(item.mean('total'), 0)} / {item.errors:.0f}"
        right = _number(item.mean("flag_precision"), 0)
        rows.append([item.name, _number(item.mean("ap")), *_rival(item), claimed, right])
    header = ("cell", "AP before", "best rival", "difference", "errors claimed / true", "flags right, %")
    return table(header, rows)


def ranking() -> str:
    """The order of the labels by the new estimator."""
    rows = []
    for item in read_cells(NEW, lambda cell: cell.noise != "clean"):
        figures = [_number(item.mean(key)) for key in ("p@1%", "missed")]
        rows.append([item.name, _seeds(item), f"{item.errors:.0f}", _number(item.mean("ap")), *_rival(item), *figures])
    header = ("cell", "seeds", "errors", "AP", "best rival", "difference", "P@1%", "missed, %")
    return table(header, rows)


def flags() -> str:
    """What is called more likely wrong than right, and how many errors are claimed."""
    rows = []
    for item in read_cells(NEW):
        precise, found = item.mean("flag_precision"), item.mean("flag_recall")
        left = item.mean("left_after_relabelling")
        rows.append(
            [
                item.name,
                _number(item.mean("num_flagged"), 0),
                _number(precise, 0),
                _number(found, 0),
                _number(item.cleanlab_recall(), 0),
                f"{_number(left, 0)} / {item.errors:.0f}",
                f"{_number(item.mean('total'), 0)} / {item.errors:.0f}",
                _number(item.mean("ece")),
            ]
        )
    header = ("cell", "flagged", "right, %", "of all errors, %", "cleanlab as precise, %")
    return table((*header, "errors left / before", "errors claimed / true", "ECE"), rows)


def real_groups(method: str) -> list[tuple[str, list[Run], dict[str, list[float]]]]:
    """By set: our runs, and AP of every rival by seed."""
    runs = latest(REAL_FILE)
    found = []
    for name in dict.fromkeys(run["settings"]["data"] for run in runs):
        here = [run for run in runs if run["settings"]["data"] == name]
        ours = [run for run in here if run["settings"]["method"] == method]
        rivals: dict[str, list[float]] = {}
        for run in here:
            if run["settings"]["method"] == "rivals":
                for rival, report in run["report"].items():
                    rivals.setdefault(rival, []).append(report["ap"])
        found.append((name, ours, rivals))
    return found


def mean_ap(runs: Iterable[Run]) -> float | None:
    """Mean AP of ours; None where it was not run."""
    found = [run["report"]["ours"]["ap"] for run in runs]
    return float(np.mean(found)) if found else None


def real() -> str:
    """AP among the examples that people judged."""
    before = {name: mean_ap(runs) for name, runs, _ in real_groups(TODAY)}
    rows = []
    for name, runs, rivals in real_groups(NEW):
        kinds = {"cleanlab": "logistic", "published": "published", "neighbours": "neighbours"}
        best = {
            kind: max((float(np.mean(aps)) for rival, aps in rivals.items() if rival.startswith(start)), default=None)
            for kind, start in kinds.items()
        }
        any_run = next((run for run in latest(REAL_FILE) if run["settings"]["data"] == name), None)
        judged = "-" if any_run is None else f"{any_run['errors']} of {any_run['examples']}"
        rows.append([name, judged, *map(_number, (before[name], mean_ap(runs), *best.values()))])
    header = ("test set", "judged wrong", "AP before", "AP", "cleanlab, same features", "the study's probabilities")
    return table((*header, "nearest neighbours"), rows)


def cost_ratios(cells: Sequence[CellRuns]) -> list[tuple[str, float, float]]:
    """Cells of 5,000 examples: our CPU seconds, and how many times those of logistic regression and cleanlab."""
    found = []
    for item in cells:
        if item.cell.size == 5_000 and item.shared:
            theirs = float(np.mean(item.theirs(BASE, "seconds")))
            found.append((item.name, item.mean("seconds"), item.mean("seconds") / theirs))
    return found


def cost() -> str:
    """CPU seconds at 5,000 examples."""
    rows = [[name, f"{spent:.0f}", f"{ratio:.1f}"] for name, spent, ratio in cost_ratios(read_cells(NEW))]
    return table(("cell", "CPU seconds", "times logistic regression and cleanlab"), rows)


def scale() -> str:
    """CPU and memory on made features."""
    rows = []
    for run in latest(SCALE_FILE):
        settings, report = run["settings"], run["report"]
        size = f"{settings['examples']:,} x {settings['features']}, {settings['classes']:,} classes"
        each = 1e6 * report["cpu_s"] / settings["examples"]
        peak = f"{report['peak_gb']:.1f}"
        rows.append([size, settings["method"], f"{report['cpu_s']:,.0f}", f"{each:,.0f}", peak, f"{report['ap']:.1f}"])
    return table(("made features", "method", "CPU seconds", "per million examples", "peak memory, GB", "AP"), rows)
