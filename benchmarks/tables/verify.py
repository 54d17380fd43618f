"""What 60 checked labels are worth: coverage and width of the intervals, and how `sgoif check` ends."""

from __future__ import annotations

import numpy as np

from benchmarks.tables.rows import Run, latest, table

__all__ = ["check", "coverage", "groups", "tables"]

FIGURES = ("all labels", "flagged", "top 1%", "top 5%", "top 10%")


def _of(part: str) -> list[Run]:
    return [run for run in latest("verify.jsonl") if run["settings"]["part"] == part]


def coverage() -> str:
    """Mean coverage over the kinds of rankings, the least, and the median width, by rate of errors and figure."""
    runs = _of("coverage")
    rows = []
    for rate in dict.fromkeys(run["settings"]["rate"] for run in runs):
        cells = []
        for name in FIGURES:
            found = [run["report"][name] for run in runs if run["settings"]["rate"] == rate and name in run["report"]]
            covers = [100 * item["coverage"] for item in found]
            width = 100 * float(np.median([item["median_width"] for item in found]))
            cells.append(f"{np.mean(covers):.0f} ({min(covers):.0f}), {width:.1f}")
        rows.append([f"{100 * rate:g}%", *cells])
    return table(["wrong labels", *FIGURES], rows)


def groups() -> str:
    """How many groups of 1,000 verifications hold in 85% or more, and which hold in more than 97%."""
    rows = []
    for name in FIGURES:
        found = [run["report"][name] for run in _of("coverage") if name in run["report"]]
        covers = [100 * item["coverage"] for item in found]
        held = sum(value >= 85 for value in covers)
        few = [item for item in found if item["coverage"] > 0.97]
        plenty = [item for item in few if min(item["errors_in_sample"], item["right_in_sample"]) >= 5]
        all_wrong = sum(item["errors_in_sample"] >= 5 for item in few)
        rows.append(
            [name, f"{held} of {len(found)}", f"{min(covers):.1f}%", str(len(few)), str(all_wrong), str(len(plenty))]
        )
    header = ["figure", "groups with 85% or more", "least", "above 97%"]
    return table([*header, "of these, 5 wrong labels or more in the sample", "and 5 right ones or more"], rows)


def tables() -> str:
    """Coverage and width on tables of the trust grid, as `sgoif scan` ranks them."""
    rows = []
    for run in _of("tables"):
        found = [run["report"].get(name) for name in FIGURES]
        cells = [
            "-" if item is None else f"{100 * item['coverage']:.0f}, {100 * item['median_width']:.1f}" for item in found
        ]
        rows.append([run["settings"]["cell"], *cells])
    return table(["cell", *FIGURES], rows)


def check() -> str:
    """How `sgoif check` ends by limit, number of checked labels and true rate, over the kinds of rankings."""
    runs = _of("check")
    rows = []
    for limit, cards in dict.fromkeys((run["settings"]["limit"], run["settings"]["cards"]) for run in runs):
        found: dict[float, list[Run]] = {run["settings"]["factor"]: [] for run in runs}
        for run in runs:
            if (run["settings"]["limit"], run["settings"]["cards"]) == (limit, cards):
                found[run["settings"]["factor"]].append(run["report"])
        fine = {factor: [100 * item["fine"] for item in items] for factor, items in found.items()}
        said = [f"{np.mean(fine[0.5]):.0f}% ({min(fine[0.5]):.0f}-{max(fine[0.5]):.0f})"]
        said += [f"{np.mean(fine[factor]):.1f}% ({max(fine[factor]):.0f})" for factor in (1.02, 1.5)]
        over = 100 * float(np.mean([item["exceeded"] for item in found[1.5]]))
        rows.append([f"{100 * limit:g}%", str(cards), *said, f"{over:.0f}%"])
    header = ["limit", "checked", "exit 0 at half the limit", "exit 0 just above it", "exit 0 at 1.5 times"]
    return table([*header, "exit 1 at 1.5 times"], rows)
