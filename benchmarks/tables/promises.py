"""What was promised beside what is true, over the seeds of one setting."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.tables.rows import Run

__all__ = ["promise_cells", "promise_header"]


def promise_header(first: str) -> tuple[str, ...]:
    tops = ("top 1%: promised / true", "top 5%", "top 10%")
    return (first, *tops, "most above the truth", "lower end holds", "errors expected / true")


def promise_cells(found: Sequence[Run]) -> list[str]:
    """Mean precision of the top 1, 5 and 10%, the largest promise above the truth, and the number of errors.

    Args:
        found: What holds ``precision`` and ``errors``, one per seed.
    """
    cells, over, covered = [], [], []
    for items in zip(*(run["precision"] for run in found), strict=True):
        promised, true = (100 * np.mean([item[key] for item in items]) for key in ("value", "true"))
        cells.append(f"{promised:.0f} / {true:.0f}")
        over += [100 * (item["value"] - item["true"]) for item in items]
        covered += [item["low"] <= item["true"] for item in items]
    expected, true = (np.mean([run["errors"][key] for run in found]) for key in ("expected", "true"))
    return [*cells, f"{max(over):+.0f}", f"{sum(covered)} of {len(covered)}", f"{expected:,.0f} / {true:,.0f}"]
