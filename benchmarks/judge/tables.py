"""The tables of the judge's page: all replays together, by data, and one line each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from benchmarks.judge.cells import GROUPS, Cell
from benchmarks.tables.rows import Run, latest, table

FILE = "judge.jsonl"
JUDGES: Mapping[str, str] = {"watch": "`watch`", "audit": "`audit`", "judge": "judge of records"}
HOLDOUTS: Mapping[str, str] = {"given": "as given", "trusted": "trusted", "hundred": "100, as given"}
DATA: Mapping[str, str] = {
    "digits": "digits",
    "fashion": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "banking77": "Banking77",
}
BELOW = 1.5  # points of AP behind free signals that a cell may be
FACTOR = 2.0  # within which a total counts as right
FEW_FLAGS = 20  # below, their share of right ones says little
HEADER = (
    *("replays: noisy, clean", "AP", "minus free", "worst", f"more than {BELOW} below"),
    *("totals claimed", f"of these within {FACTOR:.0f} times", "most claimed on clean labels"),
    *("flags right", "errors found", "intervals hold"),
)


@dataclass(frozen=True, slots=True)
class Figures:
    """One replay by one judge."""

    cell: Cell
    judge: str
    run: Run

    @property
    def num_errors(self) -> int:
        return int(self.run["errors"])

    @property
    def ap(self) -> float:
        return float(self.run["report"]["ap"])

    @property
    def free(self) -> float:
        """The best AP of a signal that costs nothing, chosen after the fact."""
        return max(float(ap) for ap in self.run["free"].values())

    @property
    def total(self) -> float | None:
        """Wrong labels claimed; None where it cannot tell."""
        found = self.run["report"]["total"]
        return None if found is None else float(found)

    @property
    def is_near(self) -> bool:
        """Whether a total is claimed, and lies within the factor."""
        return self.total is not None and self.num_errors <= FACTOR * self.total <= FACTOR**2 * self.num_errors

    @property
    def claimed(self) -> float:
        """Percent of the labels claimed to be wrong; none where it cannot tell."""
        return 100 * (self.total or 0.0) / float(self.run["examples"])

    @property
    def num_flags(self) -> int:
        return int(self.run["report"]["flags"])

    @property
    def right(self) -> float:
        """Percent of the flags that are right."""
        return 100 * float(self.run["report"]["right"]) / max(self.num_flags, 1)

    @property
    def found(self) -> float:
        """Percent of the errors that are flagged."""
        return 100 * float(self.run["report"]["right"]) / max(self.num_errors, 1)

    @property
    def holds(self) -> bool | None:
        """Whether the range has the truth in it; None without one."""
        found = self.run["report"]["holds"]
        return None if found is None else bool(found)


def read_figures(group: str = "reported") -> list[Figures]:
    """The last row of every replay of a group and judge, in the order of the grid."""
    found = {}
    for run in latest(FILE):
        known = {**run["settings"], "seed": run["seed"]}
        cell = Cell(**{field.name: known[field.name] for field in fields(Cell)})
        found[cell, known["judge"]] = Figures(cell, known["judge"], run)
    return [found[c, judge] for judge in JUDGES for c in GROUPS[group].replays if (c, judge) in found]


def noisy(figures: Iterable[Figures]) -> list[Figures]:
    """Those with wrong labels to find."""
    return [item for item in figures if item.num_errors]


def clean(figures: Iterable[Figures]) -> list[Figures]:
    """Those where every label is right."""
    return [item for item in figures if not item.num_errors]


def summarise(figures: Sequence[Figures]) -> list[str]:
    """The cells of one row; intervals are those of clean labels too."""
    wrong, fine = noisy(figures), clean(figures)
    gains = [item.ap - item.free for item in wrong]
    claims = [item for item in wrong if item.total is not None]
    flagged = [item.right for item in wrong if item.num_flags >= FEW_FLAGS]
    held = [item.holds for item in figures if item.holds is not None]
    return [
        f"{len(wrong)}, {len(fine)}",
        _mean([item.ap for item in wrong]),
        _mean(gains, "+"),
        f"{min(gains):+.1f}" if gains else "-",
        str(sum(gain < -BELOW for gain in gains)),
        f"{len(claims)} of {len(wrong)}",
        f"{sum(item.is_near for item in claims)} of {len(claims)}",
        f"{max(item.claimed for item in fine):.1f}%" if fine else "-",
        f"{_mean(flagged)}%" if flagged else "-",
        f"{_mean([item.found for item in wrong])}%" if wrong else "-",
        f"{sum(held)} of {len(held)}",
    ]


def _mean(values: Sequence[float], sign: str = "") -> str:
    return f"{np.mean(values):{sign}.1f}" if values else "-"


def _rows(part: Callable[[Figures], str], names: Mapping[str, str], figures: Sequence[Figures]) -> list[list[str]]:
    rows = []
    for key, name in names.items():
        for judge, said in JUDGES.items():
            here = [item for item in figures if item.judge == judge and part(item) == key]
            if here:
                rows.append([name, said, *summarise(here)])
    return rows


def by_holdout() -> str:
    """All reported replays, by judge, and by hold-out and judge."""
    figures = read_figures()
    rows = _rows(lambda item: "all", {"all": "all"}, figures)
    rows += _rows(lambda item: item.cell.holdout, HOLDOUTS, figures)
    return table(("hold-out", "judge", *HEADER), rows)


def by_data() -> str:
    """Reported replays with a hold-out as given, by data and judge."""
    figures = [item for item in read_figures() if item.cell.holdout == "given"]
    return table(("data", "judge", *HEADER), _rows(lambda item: item.cell.data, DATA, figures))


def by_cell() -> str:
    """One line per reported replay."""
    figures = {(item.cell, item.judge): item for item in read_figures()}
    judges = [judge for judge in JUDGES if any(known == judge for _, known in figures)]
    rows = []
    for cell in GROUPS["reported"].replays:
        found = [figures.get((cell, judge)) for judge in judges]
        known = next((item for item in found if item is not None), None)
        if known is not None:
            free = f"{known.free:.1f}" if known.num_errors else "-"
            rows.append([cell.name, str(known.num_errors), free, *(_figures_of(item) for item in found)])
    return table(("replay", "wrong labels", "free", *(JUDGES[judge] for judge in judges)), rows)


def _figures_of(item: Figures | None) -> str:
    """AP; claimed wrong, with the range; right among flagged."""
    if item is None:
        return "-"
    report = item.run["report"]
    ap = f"{item.ap:.1f}; " if item.num_errors else ""
    span = "" if report["low"] is None else f" ({report['low']:.0f} to {report['high']:.0f})"
    total = "cannot tell" if item.total is None else f"{item.total:.0f}{span}"
    return f"{ap}{total}; {report['right']} of {report['flags']}"
