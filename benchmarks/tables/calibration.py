"""What probabilities say of the first of a list beside what is true, over the seeds of one setting."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.tables.rows import Run

__all__ = ["calibration_cells", "calibration_header"]


def calibration_header(first: str) -> tuple[str, ...]:
    tops = ("top 1%: mean p / wrong, %", "top 5%", "top 10%")
    return (first, *tops, "most above the truth", "errors estimated / true")


def calibration_cells(found: Sequence[Run]) -> list[str]:
    """Mean precision of the top 1, 5 and 10%, the largest excess over the truth, and the number of errors.

    Args:
        found: What holds ``precision`` and ``errors``, one per seed.
    """
    cells, over = [], []
    for items in zip(*(run["precision"] for run in found), strict=True):
        said, true = (100 * np.mean([item[key] for item in items]) for key in ("value", "true"))
        cells.append(f"{said:.0f} / {true:.0f}")
        over += [100 * (item["value"] - item["true"]) for item in items]
    expected, true = (np.mean([run["errors"][key] for run in found]) for key in ("expected", "true"))
    return [*cells, f"{max(over):+.0f}", f"{expected:,.0f} / {true:,.0f}"]
