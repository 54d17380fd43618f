"""What the columns of a table are: found by their names and types, or named by the user; ids and labels read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SgoifError
from sgoif.sources.columns import (
    ID_COLUMNS,
    IMAGE_COLUMNS,
    LABEL_COLUMNS,
    TEXT_COLUMNS,
    ColumnNames,
    find_column,
    number_labels,
    read_class_names,
)
from sgoif.sources.tables import TableReader

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Roles", "choose_roles", "read_ids", "read_labels"]

_LABEL_HINT = "Name it with --label COLUMN (label='COLUMN')."
_KIND_HINT = (
    "Name the column of texts (--text COLUMN) or pictures (--image COLUMN), or pass embeddings (--features FILE)."
)


@dataclass(frozen=True, slots=True)
class Roles:
    """Columns by what they hold."""

    kind: Literal["picture", "text", "row"]
    labels: tuple[str, ...]
    image: str | None = None
    text: str | None = None
    id: str | None = None
    group: str | None = None
    split: str | None = None
    vector: str | None = None  # lists of numbers: embeddings
    others: tuple[str, ...] = ()  # columns of numbers, truth values, times or short texts
    notes: tuple[str, ...] = ()  # what was assumed


def choose_roles(reader: TableReader, names: ColumnNames, *, is_labelled: bool, has_features: bool) -> Roles:
    """Say what each column is; what the user names comes first.

    Raises:
        SgoifError: A column is missing; the message names the columns there are.
    """
    schema = reader.schema
    present = list(schema.names)
    names.check(present, reader.about)
    where = str(reader.files[0]) if reader.files else reader.about
    labels = names.labels
    if is_labelled and not labels:
        labels = (find_column(present, LABEL_COLUMNS, "a label", where, _LABEL_HINT),)
    left = [name for name in present if name not in labels]
    image = names.image or (None if names.text else _first(left, IMAGE_COLUMNS, schema, _holds_pictures))
    text = names.text or _first(left, TEXT_COLUMNS, schema, _holds_text)
    key = names.id or next((name for name in ID_COLUMNS if name in left and name not in (image, text)), None)
    taken = {*labels, image, text, key, names.group, names.split}
    vector = next((field.name for field in schema if field.name not in taken and _holds_vectors(field.type)), None)
    others = tuple(field.name for field in schema if field.name not in taken and _is_plain(field.type))
    notes = []
    if image is not None and text is not None and names.image is None:
        notes.append(f"Pictures are judged, of the column {image!r}; for the texts of {text!r} pass --text {text}.")
    kind: Any = "text" if names.text else "picture" if image is not None else "text" if text is not None else "row"
    if vector is not None and is_labelled and not has_features:
        notes.append(f"Examples are judged by their embeddings, of the column {vector!r}.")
    if kind == "row" and is_labelled and not has_features and not others and vector is None:
        raise SgoifError(
            f"{reader.about} has no column with a text, an encoded picture or numbers beside the label: it has "
            f"{', '.join(present)}. {_KIND_HINT}"
        )
    return Roles(kind, labels, image, text, key, names.group, names.split, vector, others, tuple(notes))


def read_ids(reader: TableReader, roles: Roles, *, is_named: bool) -> tuple[list[str], tuple[str, ...]]:
    """Read ids; row numbers where there are none, or where a column only looks like ids.

    Raises:
        SgoifError: The column that the user names has an id twice, or none.
    """
    if roles.id is None:
        count = reader.count(next(iter((*roles.labels, *reader.schema.names))))
        return [str(i) for i in range(count)], ()
    raw = [value for _, block in reader.blocks([roles.id]) for value in block[roles.id].to_pylist()]
    ids = [str(value) for value in raw]
    missing, twice = sum(value is None for value in raw), len(ids) - len(set(ids))
    if not missing and not twice:
        return ids, ()
    fault = f"{missing:,} rows without an id" if missing else f"{twice:,} ids that other rows have too"
    if is_named:
        raise SgoifError(f"the column {roles.id!r} has {fault}; ids must be there and differ.")
    return [str(i) for i in range(len(raw))], (f"Ids are row numbers, from 0: the column {roles.id!r} has {fault}.",)


def read_labels(reader: TableReader, roles: Roles, *, is_regression: bool) -> dict[str, Any]:
    """Read labels as classes, as votes of several annotators, or as values: fields of a source.

    Raises:
        SgoifError: Values are asked for and the labels are none.
    """
    columns = {name: list[Any]() for name in roles.labels}
    for _, block in reader.blocks(roles.labels):
        for name, values in columns.items():
            values.extend(block[name].to_pylist())
    first = roles.labels[0]
    if is_regression:
        if len(columns) > 1:
            raise SgoifError("a regression has one column of labels; several are for classes by several annotators.")
        found = _as_values(columns[first], first)
        return {"values": found, "labels": np.where(np.isfinite(found), 0, -1), "class_names": ()}
    path = reader.files[0] if reader.files else None
    names = read_class_names(path, reader.schema, first)
    if len(columns) == 1:
        labels, classes = number_labels(columns[first], names, first)
        return {"labels": labels, "class_names": classes}
    count = len(columns[first])
    together, classes = number_labels([value for values in columns.values() for value in values], names, first)
    votes = together.reshape(len(columns), count).T
    some = np.where(votes >= 0, votes, np.iinfo(np.int64).max).min(1)
    return {"votes": votes, "labels": np.where((votes >= 0).any(1), some, -1), "class_names": classes}


def _as_values(raw: Sequence[Any], column: str) -> NDArray[np.float64]:
    try:
        return np.array([np.nan if value is None or value == "" else float(value) for value in raw])
    except (TypeError, ValueError) as error:
        raise SgoifError(f"the column {column!r} holds no numbers: {error}; a regression needs values.") from error


def _first(names: Sequence[str], known: Sequence[str], schema: pa.Schema, fits: Any) -> str | None:
    return next((name for name in known if name in names and fits(schema.field(name).type)), None)


def _holds_pictures(kind: pa.DataType) -> bool:
    import pyarrow.types as types

    tests = (types.is_binary, types.is_large_binary, types.is_struct, _holds_text)
    return any(test(kind) for test in tests)


def _holds_text(kind: pa.DataType) -> bool:
    import pyarrow.types as types

    return any(test(kind) for test in (types.is_string, types.is_large_string, types.is_dictionary))


def _holds_vectors(kind: pa.DataType) -> bool:
    import pyarrow.types as types

    is_list = any(test(kind) for test in (types.is_list, types.is_large_list, types.is_fixed_size_list))
    return is_list and any(test(kind.value_type) for test in (types.is_floating, types.is_integer))


def _is_plain(kind: pa.DataType) -> bool:
    import pyarrow.types as types

    tests = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_temporal, _holds_text)
    return any(test(kind) for test in tests)
