"""What cleaning is worth: accuracy after review, and after cleaning without people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.tables.rows import grouped, latest

__all__ = ["cleaned", "review"]


def review() -> str:
    """Test accuracy after a review of so many examples, in three orders, mean over seeds and every seed's."""
    columns = {"ours": "our order", "aum": "AUM's order", "random": "random order"}
    cells: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for run in sorted(latest("review.jsonl"), key=lambda run: run["seed"]):
        cells.setdefault((run["settings"]["order"], run["settings"]["budget"]), []).append(run)
    lines = ["| examples looked at | " + " | ".join(columns.values()) + " |", "|---|" + "---|" * len(columns)]
    for order, said in (("none", "none"), ("truth", "all labels true")):
        if (order, 0) in cells:
            same = " | ".join([_reviewed(cells[order, 0]), "", ""])
            lines.append(f"| {said} | {same} |")
    for budget in sorted({budget for order, budget in cells if order in columns}):
        row = [_reviewed(cells.get((order, budget), [])) for order in columns]
        lines.insert(len(lines) - (("truth", 0) in cells), f"| {budget:,} | {' | '.join(row)} |")
    return "\n".join(lines)


def _reviewed(runs: Sequence[Mapping[str, Any]]) -> str:
    if not runs:
        return ""
    accuracies = [100 * run["accuracy"] for run in runs]
    wrong = np.mean([run["wrong_labels"] for run in runs])
    each = f" ({', '.join(f'{value:.1f}' for value in accuracies)})" if len(runs) > 1 else ""
    return f"{np.mean(accuracies):.1f}{each}; {wrong:,.0f} wrong labels left"


def cleaned() -> str:
    """Test accuracy after cleaning without people, and the share of the gap to true labels that it recovers."""
    runs = latest("cleaned.jsonl")
    columns = [where for (where,), _ in grouped(runs, ("setting",))]
    found = dict(grouped(runs, ("setting", "judge", "way")))
    lines = [f"| judged by | changed how | {' | '.join(columns)} |", "|---|---|" + "---|" * len(columns)]
    kinds = dict.fromkeys((run["settings"]["judge"], run["settings"]["way"]) for run in runs)
    for judge, way in kinds:
        cells = [_cleaned(found, where, judge, way) for where in columns]
        lines.append(f"| {_JUDGES.get(judge, judge)} | {way or '-'} | {' | '.join(cells)} |")
    return "\n".join(lines)


_JUDGES = {
    "none": "nobody (labels as given)",
    "truth": "all labels true",
    "frozen ours": "sgoif, heads on frozen features",
    "frozen confident": "confident learning, same features",
    "scratch ours": "sgoif, one watched training",
    "scratch confident": "confident learning, same network (4 trainings)",
}


def _cleaned(found: Mapping[tuple[str, ...], Sequence[Mapping[str, Any]]], where: str, judge: str, way: str) -> str:
    """Mean accuracy over the seeds, how much of the gap that is, and what became of the labels."""
    mine = {run["seed"]: run for run in found.get((where, judge, way), ())}
    if not mine:
        return ""
    accuracy = 100 * float(np.mean([run["accuracy"] for run in mine.values()]))
    wrong = np.mean([run["wrong_labels"] for run in mine.values()])
    if judge in ("none", "truth"):
        return f"{accuracy:.1f}; {wrong:,.0f} wrong"
    ends = [{run["seed"]: run["accuracy"] for run in found.get((where, end, ""), ())} for end in ("none", "truth")]
    both = [seed for seed in mine if seed in ends[0] and seed in ends[1]]
    shares = [(mine[seed]["accuracy"] - ends[0][seed]) / (ends[1][seed] - ends[0][seed]) for seed in both]
    share = f", {100 * float(np.mean(shares)):.0f}% of the gap" if shares else ""
    return f"{accuracy:.1f}{share}; {wrong:,.0f} wrong"
