"""Which given values of a regression are wrong: one row per example, most suspicious first."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SgoifError
from sgoif.findings.suspects import FLAGGED, UNLIKELY, Sql

__all__ = ["value_issues"]

_NUMBERS = (
    *("given_value", "predicted_value", "predicted_low", "predicted_high", "residual_std"),
    *("p_mislabeled", "p_mislabeled_low", "p_mislabeled_high", "label_score"),
)
_GENERAL = (
    "another example's value",
    "far from the prediction",
)  # sources of errors that the sentence has told already


def value_issues(sql: Sql, *, top: int | None = None, min_p: float | None = None) -> dict[str, NDArray[Any]]:
    """Make the table of values, most suspicious first; only the rows that are shown leave DuckDB.

    Args:
        sql: answers a SELECT over a run's tables.
        top: how many rows; None or 0 for all.
        min_p: only values at least this probably wrong.

    Raises:
        SgoifError: An argument is out of range.
    """
    if top is not None and top < 0:
        raise SgoifError(f"top is how many rows, 0 or more, got {top}.")
    if min_p is not None and (isinstance(min_p, str) or not 0 <= min_p <= 1):
        raise SgoifError(f"min_p is a probability between 0 and 1, got {min_p!r}.")
    where = "" if min_p is None else f"where p_mislabeled >= {float(min_p)} "
    limit = f" limit {int(top)}" if top else ""
    table = sql(
        f"select id, {', '.join(_NUMBERS)}, no_p_reason, error_source from examples {where}"
        f"order by label_score asc nulls last, id{limit}"
    )
    rows = {name: table[name].to_numpy(zero_copy_only=False) for name in table.column_names}
    rows |= {name: rows[name].astype(np.float64) for name in _NUMBERS}
    p, sources = rows["p_mislabeled"], rows.pop("error_source")
    rows["suggested_value"] = rows["predicted_value"]
    rows["is_label_issue"] = np.nan_to_num(p) >= FLAGGED
    rows["why"] = np.array([_phrase(rows, sources, i) for i in range(len(p))], dtype=object)
    return rows


def _phrase(rows: dict[str, NDArray[Any]], sources: NDArray[Any], place: int) -> str:
    """Say in plain words what speaks against a value."""
    given, predicted, low, high, width, p = (
        float(rows[name][place])
        for name in (
            *("given_value", "predicted_value", "predicted_low", "predicted_high", "residual_std", "p_mislabeled"),
        )
    )
    if not np.isfinite(predicted):
        return f"not judged: {rows['no_p_reason'][place]}"
    expected = f"{low:.4g} to {high:.4g} expected"
    if low <= given <= high:
        return f"nothing speaks against it: {expected}"
    side = "above" if given > predicted else "below"
    found = f"{abs(given - predicted) / max(width, 1e-300):.1f} deviations {side} the prediction, {expected}"
    if sources[place] is not None and sources[place] not in _GENERAL and p >= UNLIKELY:
        found += f"; looks {sources[place]}" if "times" in sources[place] else f"; looks as if {sources[place]}"
    return found
