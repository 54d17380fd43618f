"""The trust grid read back: our draws of a cell beside the rivals' on the same seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.tables.rows import Run, latest
from benchmarks.trust.cells import REPORTED, Cell

__all__ = ["CLEANLAB", "FILE", "NEW", "RIVALS_FILE", "TODAY", "CellRuns", "read_cells"]

FILE, RIVALS_FILE = "trust.jsonl", "trust_rivals.jsonl"
TODAY, NEW = "today", "pool"  # methods: before the new estimator, and the new one
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


def read_cells(method: str, keep: Callable[[Cell], bool] = lambda cell: True) -> Sequence[CellRuns]:
    """Every reported cell that a method was run on, in the order of the grid."""

    def by_cell(runs: Sequence[Run], wanted: str) -> dict[Cell, dict[int, Run]]:
        found: dict[Cell, dict[int, Run]] = {}
        for run in runs:
            settings = run["settings"]
            if settings["group"] == "reported" and settings["method"] == wanted:
                cell = Cell(*(settings[name] for name in ("data", "noise", "size", "shape", "expects")))
                found.setdefault(cell, {})[run["seed"]] = run
        return found

    ours, rivals = by_cell(latest(FILE), method), by_cell(latest(RIVALS_FILE), "rivals")
    return [CellRuns(cell, ours[cell], rivals.get(cell, {})) for cell in REPORTED if cell in ours and keep(cell)]
