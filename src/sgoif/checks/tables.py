"""Columns of a table that are partly empty, or that say nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.checks.data import CheckedData, DataIssue, cannot_check, list_worst
from sgoif.checks.numbers import share_interval
from sgoif.wording import clean, count, percent

__all__ = ["find_constant_columns", "find_null_values", "is_null"]

_MANY = 0.05
_SHOWN = 3
_EMPTY = frozenset(("", "nan", "none", "null", "n/a", "na"))


def is_null(column: NDArray[Any]) -> NDArray[np.bool_]:
    """Which values are missing: NaN, None, or a text that is empty or says so."""
    if np.issubdtype(column.dtype, np.floating):
        return np.asarray(np.isnan(column))
    if np.issubdtype(column.dtype, np.datetime64):
        return np.asarray(np.isnat(column))
    if column.dtype.kind in "OUS":
        texts, place = np.unique(np.array([_as_text(value) for value in column.tolist()]), return_inverse=True)
        return np.isin(texts, list(_EMPTY))[place.reshape(-1)]
    return np.zeros(len(column), bool)


def _as_text(value: Any) -> str:
    return "" if value is None else str(value).strip().lower()


def find_null_values(data: CheckedData) -> DataIssue:
    """Count the examples with missing values, in the columns of a table or in features."""
    kind = "null_values"
    if data.columns is None and data.features is None:
        return cannot_check(kind, "the run has neither columns nor features")
    missing = np.zeros(len(data), np.int64)
    worst: list[tuple[float, str]] = []
    for name, column in (data.columns or {}).items():
        nulls = is_null(column)
        missing += nulls
        if nulls.any():
            worst.append((float(nulls.mean()), name))
    if data.columns is None and data.features is not None:
        for start in range(0, data.features.shape[1], 64):  # not all at once: features may be large
            missing += (~np.isfinite(data.features[:, start : start + 64])).sum(1)
    rows = np.flatnonzero(missing)
    low, high = share_interval(len(rows), len(data))
    title = "No value is missing."
    if len(rows):
        named = ", ".join(f"{clean(name)} ({percent(share)})" for share, name in sorted(worst, reverse=True)[:_SHOWN])
        title = f"{count(len(rows), 'example')} {'has' if len(rows) == 1 else 'have'} missing values"
        title += f", most often in {named}." if named else " among the features."
    return DataIssue(
        kind,
        title,
        len(rows),
        len(rows) / max(len(data), 1),
        low,
        high,
        severity="none" if not len(rows) else "medium" if len(rows) >= _MANY * len(data) else "low",
        what_to_do="Find out why values are missing before you fill them in: they may depend on the class.",
        **list_worst(data, rows, missing[rows].astype(np.float64)),
    )


def find_constant_columns(data: CheckedData) -> DataIssue:
    """Count the columns that have one value for all examples."""
    kind = "constant_columns"
    if len(data) < 2:
        return cannot_check(kind, "there are fewer than two examples")
    if data.columns is not None:
        names = [name for name, column in data.columns.items() if _is_constant(column)]
        total = len(data.columns)
    elif data.features is not None:
        names = [f"feature {i}" for i in np.flatnonzero(np.ptp(data.features, axis=0) == 0).tolist()]
        total = data.features.shape[1]
    else:
        return cannot_check(kind, "the run has neither columns nor features")
    named = ", ".join(clean(name) for name in names[:_SHOWN]) + (" and more" if len(names) > _SHOWN else "")
    has = "has" if len(names) == 1 else "have"
    return DataIssue(
        kind,
        f"{count(len(names), 'column')} of {count(total)} {has} the same value everywhere{named and ': '}{named}.",
        len(names),
        len(names) / max(total, 1),
        len(names) / max(total, 1),  # a fact of this data, not an estimate
        len(names) / max(total, 1),
        severity="low" if names else "none",
        what_to_do="Drop them, or find out why what should vary does not.",
    )


def _is_constant(column: NDArray[Any]) -> bool:
    known = column[~is_null(column)]
    return bool(len(known) == 0 or (known == known[0]).all())
