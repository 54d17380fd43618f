"""Features of a table: its columns of numbers, truth values, times and categories, as numbers.

Nothing is left out without a word: every column is named with what was made of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SgoifError
from sgoif.sources.labelled import TableSource

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["TableFeatures", "make_features", "read_vectors"]

_MOST_CATEGORIES = 50  # of a column that becomes one feature per category
_REPEATED = 0.5  # a text that occurs only once is a name; so many of the rows of a category share theirs with another
_NAMED = 5  # columns in a sentence


class TableFeatures(NamedTuple):
    """Columns of a table as numbers."""

    rows: NDArray[np.float32]  # [N, D]
    names: tuple[str, ...]  # of the features, [D]
    notes: tuple[str, ...]  # what was made of which column, a sentence each


def make_features(source: TableSource) -> TableFeatures:
    """Make features of all columns beside the label, the id and those that the user named for something else.

    Numbers and times stay numbers, with the median where a value is missing and one more feature that says so; a
    column of a few categories becomes one feature per category; constant columns and texts of many kinds are left out.

    Raises:
        SgoifError: No column is left.
    """
    columns = source.roles.others
    table = source.reader.read(columns)
    found: list[NDArray[np.float32]] = []
    names: list[str] = []
    kinds: dict[str, list[str]] = {}
    for name in columns:
        kind, parts = _make(name, table[name])
        kinds.setdefault(kind, []).append(name)
        for own, values in parts:
            names.append(own)
            found.append(values)
    notes = tuple(f"{_KINDS[kind]}: {_some(kinds[kind])}." for kind in _KINDS if kind in kinds)
    if not found:
        raise SgoifError(f"no column of {source.reader.about} can be learnt from. {' '.join(notes)}")
    return TableFeatures(np.stack(found, 1), tuple(names), notes)


_KINDS = {
    "number": "Columns of numbers",
    "category": "Columns of categories, one feature for each",
    "constant": "Left out, as they are the same in every row",
    "text": "Left out, as texts of too many kinds (pass one of them with --text)",
}


def read_vectors(source: TableSource, column: str) -> NDArray[np.float32]:
    """Read embeddings that are a column of lists, ``[N, D]``; NaN where a row has none.

    Raises:
        SgoifError: The lists differ in length, or hold no numbers.
    """
    found: NDArray[np.float32] | None = None
    count, start = len(source.ids), 0
    for start, block in source.reader.blocks([column]):
        lists = block[column].to_pylist()
        width = next((len(item) for item in lists if item is not None), None)
        if width is None:
            continue
        if found is None:
            found = np.full((count, width), np.nan, np.float32)
        for row, item in enumerate(lists, start):
            if item is not None:
                _check_width(item, found.shape[1], column, row)
                found[row] = np.asarray(item, dtype=np.float32)
    if found is None:
        raise SgoifError(f"the column {column!r} holds no embedding.")
    return found


def _check_width(item: Any, width: int, column: str, row: int) -> None:
    if len(item) != width:
        raise SgoifError(f"row {row:,} of the column {column!r} has {len(item)} numbers, others have {width}.")


def _make(name: str, column: pa.ChunkedArray) -> tuple[str, list[tuple[str, NDArray[np.float32]]]]:
    import pyarrow as pa
    import pyarrow.types as types

    kind = column.type
    if types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if types.is_string(kind) or types.is_large_string(kind):
        return _make_categories(name, column.to_numpy())
    if types.is_timestamp(kind) or types.is_date(kind):
        column = column.cast(pa.timestamp("s"), safe=False)
    if types.is_time(kind):
        column = column.cast(pa.time64("us"))
    if types.is_temporal(column.type):
        column = column.cast(pa.int64())
    return _make_numbers(name, np.asarray(column.cast(pa.float64(), safe=False).to_numpy()))


def _make_numbers(name: str, values: NDArray[np.float64]) -> tuple[str, list[tuple[str, NDArray[np.float32]]]]:
    is_missing = np.isnan(values)
    known = values[~is_missing]
    if not len(known) or (known == known[0]).all():
        return "constant", []
    filled = np.where(is_missing, np.median(known), values).astype(np.float32)
    parts = [(name, filled)]
    if is_missing.any():
        parts.append((f"{name} is missing", is_missing.astype(np.float32)))
    return "number", parts


def _make_categories(name: str, texts: NDArray[Any]) -> tuple[str, list[tuple[str, NDArray[np.float32]]]]:
    filled = np.array(["" if text is None else str(text) for text in texts])
    categories, codes, counts = np.unique(filled, return_inverse=True, return_counts=True)
    if len(categories) == 1:
        return "constant", []
    is_repeated = counts[counts > 1].sum() >= _REPEATED * len(filled)
    if len(categories) > _MOST_CATEGORIES or not is_repeated:
        return "text", []
    return "category", [
        (f"{name} is {category or 'missing'}", (codes.reshape(-1) == number).astype(np.float32))
        for number, category in enumerate(categories)
    ]


def _some(names: list[str]) -> str:
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
