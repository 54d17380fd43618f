"""The trust grid: the order of labels, flags, totals, errors that people confirmed, and cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.records import read_results
from benchmarks.tables.rows import Run, latest, table
from benchmarks.trust.cells import REPORTED, Cell

TODAY, NEW, RIVALS = "today", "pool", "rivals"  # methods: before the new estimator, the new one, those of others
REAL_FILE, SCALE_FILE = "trust_real.jsonl", "trust_scale.jsonl"
BASE = "logistic, self_confidence"  # whose seconds are those of a logistic regression and cleanlab
CLEANLAB = ("logistic, self_confidence", "trees, self_confidence")  # what orders the flags of `find_label_issues`


@dataclass(frozen=True, slots=True)
class CellRuns:
    """One reported cell: our draws by seed, and the rivals' on the same seeds where they were run."""

    cell: Cell
    ours: dict[int, Run]
    rivals: dict[int, Run]

    @property
    def name(self) -> str:
        return self.cell.name

    @property
    def seeds(self) -> list[int]:
        """Seeds of ours."""
        return sorted(self.ours)

    @property
    def shared(self) -> list[int]:
        """Seeds that both sides have."""
        return sorted(self.ours.keys() & self.rivals.keys())

    @property
    def num_examples(self) -> int:
        return int(next(iter(self.ours.values()))["examples"])

    @property
    def errors(self) -> float:
        """Mean number of errors of a draw."""
        return float(np.mean([run["errors"] for run in self.ours.values()]))

    def figures(self, key: str) -> list[float]:
        """A figure of ours by seed, where there is one."""
        found = [self.ours[seed]["report"]["ours"].get(key) for seed in self.seeds]
        return [float(value) for value in found if value is not None]

    def mean(self, key: str) -> float:
        """Mean of a figure of ours; NaN where no draw has it."""
        found = self.figures(key)
        return float(np.mean(found)) if found else float("nan")

    def theirs(self, rival: str, key: str = "ap") -> list[float]:
        """A figure of a rival on the seeds that both have."""
        return [float(self.rivals[seed]["report"][rival][key]) for seed in self.shared]

    @property
    def rival_names(self) -> list[str]:
        return list(self.rivals[self.shared[0]]["report"]) if self.shared else []

    @property
    def best_rival(self) -> str | None:
        """The rival with the best mean AP over the seeds that both have."""
        if not self.shared or not self.errors:
            return None
        return max(self.rival_names, key=lambda rival: np.mean(self.theirs(rival)))

    @property
    def ahead(self) -> list[float]:
        """AP of ours less that of the best rival, by seed."""
        best = self.best_rival
        if best is None:
            return []
        mine = [self.ours[seed]["report"]["ours"]["ap"] for seed in self.shared]
        return [a - b for a, b in zip(mine, self.theirs(best), strict=True)]

    def cleanlab_recall(self) -> float | None:
        """Recall of cleanlab's order, cut where it is as precise as our flags; mean over the draws that have flags."""
        found = []
        for seed in self.shared:
            precision = self.ours[seed]["report"]["ours"].get("flag_precision")
            curves = [self.rivals[seed]["report"].get(name, {}).get("recall_at_precision") for name in CLEANLAB]
            known = [curve[int(np.ceil(precision - 1e-9))] for curve in curves if curve and precision is not None]
            found += [max(known)] if known else []
        return float(np.mean(found)) if found else None


def _cell(settings: Mapping[str, Any]) -> Cell:
    return Cell(*(settings[name] for name in ("data", "noise", "size", "shape", "expects")))


def read_cells(method: str, keep: Callable[[Cell], bool] = lambda cell: True) -> Sequence[CellRuns]:
    """Every reported cell that a method was run on, in the order of the grid."""

    def by_cell(runs: Sequence[Run], wanted: str) -> dict[Cell, dict[int, Run]]:
        found: dict[Cell, dict[int, Run]] = {}
        for run in runs:
            settings = run["settings"]
            if settings["group"] == "reported" and settings["method"] == wanted:
                found.setdefault(_cell(settings), {})[run["seed"]] = run
        return found

    ours, rivals = by_cell(latest("trust.jsonl"), method), by_cell(latest("trust_rivals.jsonl"), RIVALS)
    return [CellRuns(cell, ours[cell], rivals.get(cell, {})) for cell in REPORTED if cell in ours and keep(cell)]


@dataclass(frozen=True, slots=True)
class FewErrors:
    """Mean AP of ours and of one rival over the cells of 3% noise or less that the rival was run on."""

    rival: str
    ours: float
    theirs: float
    num_cells: int


def compare_few_errors(method: str) -> list[FewErrors]:
    """Ours beside every rival; a rival that exists only for tables is met on tables."""
    cells = [item for item in read_cells(method) if item.ahead and item.cell.rate <= 0.03]
    found = []
    for rival in sorted({name for item in cells for name in item.rival_names}):
        here = [item for item in cells if rival in item.rival_names]
        theirs = float(np.mean([np.mean(item.theirs(rival)) for item in here]))
        ours = float(np.mean([np.mean([item.ours[s]["report"]["ours"]["ap"] for s in item.shared]) for item in here]))
        found.append(FewErrors(rival, ours, theirs, len(here)))
    return found


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
            if run["settings"]["method"] == RIVALS:
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
    found, spent = [], _read_seconds()
    for item in cells:
        if item.cell.size == 5_000:
            rivals = {seed: run for seed, run in item.rivals.items() if (item.cell, seed, run["host"]["cpu"]) in spent}
            if rivals:
                mine = float(np.mean([spent[item.cell, seed, run["host"]["cpu"]] for seed, run in rivals.items()]))
                theirs = float(np.mean([run["report"][BASE]["seconds"] for run in rivals.values()]))
                found.append((item.name, mine, mine / theirs))
    return found


def _read_seconds() -> dict[tuple[Cell, int, str], float]:
    """Our CPU seconds by cell, seed and processor, the last measured: seconds of two processors are not compared."""
    found = {}
    for run in read_results("trust.jsonl"):
        if run["settings"]["group"] == "reported" and run["settings"]["method"] == NEW:
            found[_cell(run["settings"]), run["seed"], run["host"]["cpu"]] = float(run["report"]["ours"]["seconds"])
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
