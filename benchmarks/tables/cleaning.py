"""What cleaning is worth: accuracy after review."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.tables.rows import latest


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
