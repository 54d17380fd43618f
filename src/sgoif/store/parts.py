"""The Parquet files of a run: how they are called, which of them are sound, and which of them count.

A part is checked by its footer when the run is opened; one that was cut short or is no part of this run is passed over
and named. The whole file is read only where a query met trouble.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sgoif.files.locations import Place, place_of
from sgoif.store.info import find_info, step_limits
from sgoif.store.schema import LOGS, SCHEMA_VERSION, TABLES, IdKind, id_column, schema_of, step_column
from sgoif.types import Ints

__all__ = [
    "DAMAGE",
    "UNREACHABLE",
    "Part",
    "SkippedPart",
    "check_parts",
    "free_attempt",
    "list_parts",
    "name_part",
    "next_attempt",
    "numbers_taken",
    "older_parts",
    "open_part",
    "read_rows",
    "trouble_of",
]

_NAME = re.compile(r"(\w+)/rank-(\d{5,})/(?:attempt|edition)-(\d{4,})-part-(\d{6,})\.parquet")
_READERS = 16  # footers are read at once: on an object store each waits some 30 ms
_VERIFIED = {"page_checksum_verification": True} if int(pa.__version__.split(".")[0]) >= 15 else {}
# What a damaged file makes of a reader. Not a network that fails: then all parts would seem damaged.
DAMAGE = (OSError, pa.ArrowException, ValueError, OverflowError, MemoryError)
UNREACHABLE = (ConnectionError, TimeoutError, PermissionError)


@dataclass(frozen=True, slots=True)
class Part:
    """One Parquet file of a table."""

    path: str  # below the run's folder
    table: str
    number: int  # of its attempt, or edition where the table is written whole
    size: int  # bytes
    limit: int | None = None  # rows of this step and later are superseded
    num_rows: int = 0  # as the footer tells, once that was read
    bounds: tuple[Ints, Ints] | None = None  # smallest and largest hash by row group, where the footer tells


@dataclass(frozen=True, slots=True)
class SkippedPart:
    """A file that looks like a part and could not be used."""

    path: str
    reason: str


def name_part(table: str, rank: int, number: int, part: int) -> str:
    """Call a part by its table, the process that wrote it, its attempt or edition, and its place in the order.

    >>> name_part("visits", 3, 0, 12)
    'visits/rank-00003/attempt-0000-part-000012.parquet'
    """
    kind = "attempt" if table in LOGS else "edition"
    return f"{table}/rank-{rank:05d}/{kind}-{number:04d}-part-{part:06d}.parquet"


def numbers_taken(place: Place, table: str) -> set[int]:
    """Tell which attempts or editions have parts of a table."""
    found = (_NAME.fullmatch(path) for path in place.sizes(table))
    return {int(match[3]) for match in found if match is not None}


def older_parts(place: Place, attempt: int) -> list[str]:
    """List the parts of all tables that were written before an attempt, which has written no whole table yet."""
    named = ((table, _NAME.fullmatch(path)) for table in TABLES for path in place.sizes(table))
    return [found[0] for table, found in named if found and (table not in LOGS or int(found[3]) < attempt)]


def next_attempt(url: str | os.PathLike[str]) -> int:
    """Number the next start of a run in a folder: 0 in a new one.

    With several processes rank 0 asks once and tells the others, before any of them opens its sink.
    """
    place = place_of(url)
    return free_attempt(place, find_info(place))


def free_attempt(place: Place, info: Mapping[str, Any] | None) -> int:
    """Number the next attempt after all in ``run.json`` and all that a rank wrote parts of.

    An attempt that was killed before rank 0 had entered it may have left parts; its number is never given again.
    """
    known = [] if info is None else [int(item["attempt"]) for item in info["attempts"]]
    return 1 + max([*known, *(number for table in LOGS for number in numbers_taken(place, table))], default=-1)


def list_parts(place: Place, table: str, info: Mapping[str, Any]) -> list[Part]:
    """Find the parts that count, unread: of a log all that no later attempt supersedes, else those of one edition.

    Parts of an attempt that ``run.json`` does not know do not count: its steps are repeated by one that it knows.
    """
    found = [(path, size, _NAME.fullmatch(path)) for path, size in sorted(place.sizes(table).items())]
    named = [Part(path, table, int(match[3]), size) for path, size, match in found if match and match[1] == table]
    if table not in LOGS:
        edition = (info.get("editions") or {}).get(table)
        return [item for item in named if item.number == edition]
    limits = step_limits(info["attempts"])
    known = [replace(item, limit=limits[item.number]) for item in named if item.number in limits]
    return [item for item in known if item.limit is None or item.limit > 0]


def check_parts(
    place: Place, named: list[Part], kind: IdKind | None
) -> tuple[list[Part], list[SkippedPart], IdKind | None]:
    """Read the footers; without a known kind of ids the first part decides, and its kind is returned too."""
    with ThreadPoolExecutor(_READERS) as pool:
        read = list(pool.map(lambda item: _read_footer(place, item), named))
    parts, skipped = [], []
    for item, footer in zip(named, read, strict=True):
        if isinstance(footer, str):
            skipped.append(SkippedPart(item.path, footer))
            continue
        schema, num_rows, bounds = footer
        id_name = id_column(item.table)
        if kind is None and id_name in schema.names:
            kind = "string" if schema.field(id_name).type == pa.string() else "int"
        wrong = _schema_trouble(schema, item.table, kind)
        if wrong is not None:
            skipped.append(SkippedPart(item.path, wrong))
        else:
            parts.append(replace(item, num_rows=num_rows, bounds=bounds))
    return parts, skipped, kind


def open_part(place: Place, path: str) -> pq.ParquetFile:
    """Open a part for reading; bytes that changed after they were written are an error, not a number."""
    return pq.ParquetFile(place.open(path), pre_buffer=not place.is_local, **_VERIFIED)


def read_rows(
    place: Place, part: Part, columns: list[str] | None = None, groups: list[int] | None = None
) -> Iterator[pa.Table]:
    """Read a part by row group, without the rows that a later attempt repeats."""
    step, wanted = step_column(part.table), columns
    if columns is not None and step is not None and part.limit is not None and step not in columns:
        wanted = [*columns, step]
    with open_part(place, part.path) as file:
        if file.metadata.num_rows != part.num_rows:  # a run that goes on has replaced it by a longer one
            groups = None
        for group in range(file.num_row_groups) if groups is None else groups:
            table = file.read_row_group(group, columns=wanted, use_threads=False)
            if part.limit is not None:
                table = table.filter(pa.array(table[step].to_numpy() < part.limit))
            yield table if columns is None else table.select(columns)


def trouble_of(place: Place, part: Part) -> str | None:
    """Read all of a part, and tell what is wrong with it."""
    try:
        with open_part(place, part.path) as file:
            for group in range(file.num_row_groups):
                file.read_row_group(group, use_threads=False).validate(full=True)
    except UNREACHABLE:
        raise
    except DAMAGE as error:
        return _first_line(error)
    return None


def _read_footer(place: Place, item: Part) -> str | tuple[pa.Schema, int, tuple[Ints, Ints] | None]:
    try:
        if item.size < 12:
            return f"it has {item.size} bytes"
        with open_part(place, item.path) as file:
            return file.schema_arrow, file.metadata.num_rows, _bounds(file.metadata, file.schema_arrow)
    except UNREACHABLE:
        raise
    except DAMAGE as error:
        return _first_line(error)


def _bounds(footer: Any, schema: pa.Schema) -> tuple[Ints, Ints] | None:
    if "id_hash" not in schema.names or schema.field("id_hash").type != pa.int64():
        return None
    place = [footer.schema.column(i).path for i in range(footer.num_columns)].index("id_hash")
    found = [footer.row_group(i).column(place).statistics for i in range(footer.num_row_groups)]
    if not all(item is not None and item.has_min_max for item in found):
        return None
    return np.array([s.min for s in found], np.int64), np.array([s.max for s in found], np.int64)


def _schema_trouble(schema: pa.Schema, table: str, kind: IdKind | None) -> str | None:
    version = (schema.metadata or {}).get(b"sgoif.schema_version", b"").decode("ascii", "replace")
    if version != str(SCHEMA_VERSION):
        return f"its schema version is {version[:20] or 'not given'}, this sgoif reads {SCHEMA_VERSION}"
    for field in schema_of(table, kind or "int"):
        if field.name not in schema.names:
            return f"it has no column {field.name!r}"
        if schema.field(field.name).type != field.type:
            return f"its column {field.name!r} is {schema.field(field.name).type}, not {field.type}"
    return None


def _first_line(error: Exception) -> str:
    return (f"{type(error).__name__}: {error}".splitlines() or [""])[0][:200]
