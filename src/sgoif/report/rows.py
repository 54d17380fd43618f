"""Rows of a table on a page: their most unusual cells first.

How unusual a cell is, is measured within its column among a sample of rows: numbers by their distance from the median
in robust standard deviations, everything else by how rare it is.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timezone
from decimal import Decimal
from statistics import NormalDist
from typing import Any

import numpy as np

from sgoif.sources.written import cell_text, is_missing

__all__ = ["ColumnUsage", "describe_row", "measure_columns"]

_UNUSUAL = 3.0  # standard deviations from which on a cell is marked
_RARE = 0.01  # share of the rows, of a value that is marked
_FEW = 10  # different numbers: such a column holds codes
_LEAST = 8  # rows without which nothing is called unusual
_MOST_COLUMNS = 200  # of a row that the page holds
_LONGEST_CELL = 2000  # characters
_MAD_TO_STD = 1.4826
_MEAN_TO_STD = 1.2533
_MISSING = object()
_WRITTEN_NUMBER = re.compile(
    r"[+-]?((0|[1-9]\d*)(\.\d+)?|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE
)  # 007 is a code


@dataclass(frozen=True, slots=True)
class ColumnUsage:
    """What is usual in a column."""

    count: int  # rows that were looked at
    center: float | None = None  # of numbers
    scale: float = 0.0  # 0 where all numbers are the same
    rarity: Mapping[Any, float] = field(default_factory=dict)  # of other values: the share of rows as rare or rarer
    repeats: bool = True  # whether values occur several times; else being rare says nothing

    def judge(self, value: Any) -> tuple[float, str]:
        """How unusual a cell is, in standard deviations, and what is unusual about it in a word.

        >>> ColumnUsage(100, center=10.0, scale=1.0).judge(15.0)
        (5.0, 'high')
        """
        if self.count < _LEAST:
            return 0.0, ""
        number = None if self.center is None or is_missing(value) else _as_number(value)
        if number is not None and self.center is not None:
            distance = number - self.center
            if not distance:
                return 0.0, ""
            score = abs(distance) / self.scale if self.scale else math.inf
            return score, ("high" if distance > 0 else "low") if score >= _UNUSUAL else ""
        if not self.repeats and not is_missing(value):
            return 0.0, ""
        share = self.rarity.get(_key(value), 1 / self.count)
        score = NormalDist().inv_cdf(1 - share / 2)  # as far out as a number of which there are as many
        return score, "rare" if share <= _RARE and not is_missing(value) else ""


def measure_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, ColumnUsage]:
    """Learn from some rows what is usual in each column; columns are in the order in which they are met."""
    names = dict.fromkeys(str(name) for row in rows for name in row)
    return {name: _measure([row.get(name) for row in rows]) for name in names}


def describe_row(row: Mapping[str, Any], usage: Mapping[str, ColumnUsage]) -> dict[str, Any]:
    """A row for the page: cells by the number of their column, the order to show them in, and marks.

    ``None`` is a missing cell. Cells that are equally unusual stay in the table's order. ``left`` tells how many
    columns of a very wide table the page does not hold.
    """
    names = list(usage)
    judged = [usage[name].judge(row.get(name)) for name in names]
    order = sorted(range(len(judged)), key=lambda i: -judged[i][0])[:_MOST_COLUMNS]
    cells = {i: None if is_missing(row.get(names[i])) else _shorten(cell_text(row.get(names[i]))) for i in order}
    marks = {i: judged[i][1] for i in order if judged[i][1]}
    return {"row": cells, "order": order, "marks": marks, "left": len(judged) - len(order)}


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST_CELL else f"{text[:_LONGEST_CELL]}…"


def _measure(values: Sequence[Any]) -> ColumnUsage:
    present = [value for value in values if not is_missing(value)]
    numbers = [_as_number(value) for value in present]
    found = [number for number in numbers if number is not None]
    is_coded = len(set(found)) <= (_FEW if len(values) > 5 * _FEW else 2)
    if found and len(found) == len(present) and not is_coded:
        center, scale = _robust(np.array(found))
        missing = len(values) - len(found)
        return ColumnUsage(len(values), center, scale, {_MISSING: missing / len(values)} if missing else {})
    counts = Counter(_key(value) for value in values)
    sizes = Counter(counts.values())  # how many values occur how often
    rarer = dict(zip(sorted(sizes), np.cumsum([size * sizes[size] for size in sorted(sizes)]).tolist()))
    rarity = {key: rarer[number] / len(values) for key, number in counts.items()}
    repeats = len(set(map(_key, present))) <= len(present) / 2
    return ColumnUsage(len(values), rarity=rarity, repeats=repeats)


def _robust(values: np.ndarray[Any, np.dtype[np.float64]]) -> tuple[float, float]:
    """Median and standard deviation, the latter of the median or, where that is 0, the mean of distances."""
    center = float(np.median(values))
    distances = np.abs(values - center)
    return center, float(_MAD_TO_STD * np.median(distances) or _MEAN_TO_STD * distances.mean())


def _key(value: Any) -> Any:
    return _MISSING if is_missing(value) else cell_text(value)


def _as_number(value: Any) -> float | None:
    """A number or a point in time as a finite number; None for everything else, truth values too.

    A number may be written out, as in every cell of a CSV file; with leading zeros it is a code.

    >>> [_as_number(value) for value in (2, "2.50", "-1e3", ".5", "007", "e5", "12 kg", "", "nan", "1e999", True)]
    [2.0, 2.5, -1000.0, 0.5, None, None, None, None, None, None, None]
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        text = value.strip()
        value = float(text) if _WRITTEN_NUMBER.fullmatch(text) else None
    if isinstance(value, datetime):
        return float((value if value.tzinfo else value.replace(tzinfo=timezone.utc)).timestamp())
    if isinstance(value, date):
        return float(value.toordinal())
    if isinstance(value, time):
        return 3600.0 * value.hour + 60 * value.minute + value.second
    if not isinstance(value, int | float | Decimal | np.number):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
