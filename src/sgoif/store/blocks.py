"""From what training hands over to the bytes of one Parquet part.

A part is sorted by the hash of the id and cut into row groups at fixed values of the hash, the same in every part: the
range of all hashes in 2, 4, 8, … equal pieces. A reader that wants one piece of all ids, a *bucket*, takes the row
groups whose statistics lie in it and leaves the rest where it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import ArrayLike, NDArray

from sgoif.errors import StoreError
from sgoif.records import ScoreBatch
from sgoif.store.ids import arrow_ids, check_kind, kind_of_ids
from sgoif.store.schema import FLAGS_NOT_FINITE, IdKind, id_column, schema_of

__all__ = [
    "Columns",
    "encode_part",
    "hash_edges",
    "join_chunks",
    "sorted_groups",
    "table_groups",
    "table_of",
    "visit_columns",
]

_MIN_GROUP_ROWS = 8192  # smaller row groups cost more in the footer than they save
_MAX_GROUPS = 32  # 20,000 rows in a part of 64 MB; the footer is then 0.1% of it
_PLAIN_GROUP_ROWS = 122_880  # of tables that are not read by bucket
_CHECKSUMS = {"write_page_checksum": True} if int(pa.__version__.split(".")[0]) >= 15 else {}

Columns = dict[str, Any]  # numpy arrays, and Arrow's for ids


def visit_columns(batches: Sequence[ScoreBatch], attempt: int, kind: IdKind) -> Columns:
    """Join the visits of several steps into the columns of the table, in the types of the table.

    The attempt is the sink's: a run that is resumed twice from one checkpoint would count its attempts wrong itself.
    """
    ids = batches[0].ids if len(batches) == 1 else np.concatenate([np.asarray(batch.ids) for batch in batches])
    column, hashes = arrow_ids(np.asarray(ids), kind)
    sizes = [len(batch.ids) for batch in batches]
    known = {
        "id": column,
        "id_hash": hashes,
        "attempt": np.full(len(hashes), attempt, np.int32),
        "given_label": _as_int32(np.concatenate([np.asarray(batch.given_labels) for batch in batches])),
    }
    columns: Columns = {}
    for field in schema_of("visits", kind):
        if field.name in known:
            columns[field.name] = known[field.name]
        elif field.name in ("step", "epoch", "rank", "micro_step"):
            values = np.array([getattr(batch, field.name) for batch in batches], _numpy_type(field.type))
            columns[field.name] = np.repeat(values, sizes)
        else:
            columns[field.name] = _signal(batches, sizes, field)
        if len(columns[field.name]) != len(hashes):
            raise StoreError(f"{field.name} has {len(columns[field.name])} rows, the ids have {len(hashes)}.")
    return columns


def table_of(
    name: str, columns: Mapping[str, ArrayLike], attempt: int, known_kind: IdKind | None
) -> tuple[pa.Table, IdKind | None]:
    """Put columns that somebody made into the types of a table; what is missing is null, what is new is added.

    Returns:
        The table, and the kind of its ids where it has any.

    Raises:
        StoreError: There is no such table, its ids are missing or of another kind than known, or columns differ in
            length.
    """
    kind: IdKind = known_kind or "int"
    schema_of(name, kind)  # refuses what is no table
    id_name = id_column(name)
    given: dict[str, Any] = dict(columns)
    if id_name is not None:
        if id_name not in given:
            raise StoreError(f"the table {name!r} needs a column {id_name!r}; got {', '.join(given) or 'none'}.")
        ids = given[id_name]
        if not isinstance(ids, pa.Array):  # Arrow's come from the store itself, hashed
            ids = np.asarray(ids)
            kind = kind_of_ids(ids) if len(ids) else kind
            check_kind(kind, known_kind)
            given[id_name], given["id_hash"] = arrow_ids(ids, kind)
    lengths = {key: len(value) for key, value in given.items()}
    if len(set(lengths.values())) != 1:
        raise StoreError(f"columns of {name!r} must be of one length, at least one of them; got {lengths}.")
    rows = next(iter(lengths.values()))
    schema = schema_of(name, kind)
    if "attempt" in schema.names:
        given["attempt"] = np.full(rows, attempt, np.int32)
    arrays = {field.name: _typed(given.pop(field.name, None), field, rows) for field in schema}
    extra = {key: value if isinstance(value, pa.Array) else _array(value, None) for key, value in given.items()}
    wide = pa.schema([*schema, *(pa.field(key, value.type) for key, value in extra.items())], schema.metadata)
    return pa.table({**arrays, **extra}, schema=wide), None if id_name is None or not rows else kind


def join_chunks(chunks: list[Columns], schema: pa.Schema) -> Columns:
    """Join chunks into one, column by column; the chunks are emptied, so that rows are held once."""
    return {field.name: _concatenated([chunk.pop(field.name) for chunk in chunks]) for field in schema}


def sorted_groups(joined: Columns, schema: pa.Schema) -> Iterator[pa.Table]:
    """Hand the rows of a chunk out by hash, one row group after another; only the row group at hand is copied."""
    order = np.argsort(joined["id_hash"])
    for start, stop in pairwise(_cuts(joined["id_hash"].take(order), len(order))):
        rows = order[start:stop]
        # NaN becomes null: SQL's max() and avg() pass over it, and `order by ... desc` does not begin with it
        arrays = [
            column.take(pa.array(rows))
            if isinstance(column, pa.Array)
            else pa.array(column.take(rows), schema.field(name).type, from_pandas=True)
            for name, column in joined.items()
        ]
        yield pa.table(arrays, schema=schema)


def table_groups(table: pa.Table) -> Iterator[pa.Table]:
    """Cut a table into row groups: at edges of the hash where its rows are sorted by it."""
    hashes = table["id_hash"].to_numpy() if "id_hash" in table.column_names and len(table) else None
    for start, stop in pairwise(_cuts(hashes, len(table))):
        yield table.slice(start, stop - start)


def encode_part(schema: pa.Schema, groups: Iterable[pa.Table]) -> pa.Buffer:
    """Encode row groups as a Parquet file."""
    numbers = [field.name for field in schema if pa.types.is_integer(field.type)]
    repeated = [name for name in numbers if name not in ("id", "holdout_id", "id_hash")]
    # one per step, and one sentence for many
    repeated += [name for name in ("confidence", "confidence_worst", "no_p_reason") if name in schema.names]
    out = pa.BufferOutputStream()
    with pq.ParquetWriter(
        out,
        schema,
        compression="zstd",
        compression_level=1,  # scores hardly compress: 12% smaller at half the speed of no compression
        use_dictionary=repeated,
        write_statistics=numbers,  # never of text: a footer would hold ids of 10 kB
        **_CHECKSUMS,
    ) as writer:
        for group in groups:
            if len(group):
                writer.write_table(group, row_group_size=len(group))
    return out.getvalue()


def hash_edges(pieces: int) -> NDArray[np.int64]:
    """Cut the range of signed 64-bit hashes into equal pieces: their ``pieces - 1`` inner edges, a power of two.

    >>> hash_edges(4).tolist() == [-(2**62), 0, 2**62]
    True
    """
    return np.array([-(1 << 63) + k * ((1 << 64) // pieces) for k in range(1, pieces)], np.int64)


def _cuts(hashes: NDArray[np.int64] | None, num_rows: int) -> list[int]:
    if hashes is None or (hashes[1:] < hashes[:-1]).any():
        return [*range(0, num_rows, _PLAIN_GROUP_ROWS), num_rows]
    groups = 1 << max(0, min(num_rows // _MIN_GROUP_ROWS, _MAX_GROUPS).bit_length() - 1)
    return [0, *np.searchsorted(hashes, hash_edges(groups)).tolist(), num_rows]


def _concatenated(pieces: list[Any]) -> Any:
    return pa.concat_arrays(pieces) if isinstance(pieces[0], pa.Array) else np.concatenate(pieces)


def _signal(batches: Sequence[ScoreBatch], sizes: Sequence[int], field: pa.Field) -> NDArray[Any]:
    pieces = [
        np.asarray(batch.columns[field.name]) if field.name in batch.columns else np.full(size, np.nan, np.float32)
        for batch, size in zip(batches, sizes)
    ]
    values = np.concatenate(pieces)
    if field.type == pa.int32():
        return _as_int32(values, FLAGS_NOT_FINITE if field.name == "flags" else -1)
    with np.errstate(over="ignore"):  # beyond float32 is infinite, and counted as such
        return values.astype(np.float32, copy=False)


def _as_int32(values: NDArray[Any], otherwise: int = -1) -> NDArray[np.int32]:
    limits = np.iinfo(np.int32)
    sound = (values >= limits.min) & (values <= limits.max)  # written so that NaN is not
    return np.where(sound, values, otherwise).astype(np.int32)


def _typed(values: Any, field: pa.Field, rows: int) -> pa.Array:
    if values is None:
        return pa.nulls(rows, field.type)
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values.cast(field.type)
    if field.type == pa.int32():
        return pa.array(_as_int32(np.asarray(values)))
    if pa.types.is_floating(field.type) or pa.types.is_integer(field.type):
        with np.errstate(over="ignore"):
            return pa.array(np.asarray(values).astype(_numpy_type(field.type)), field.type, from_pandas=True)
    return _array(values, field.type)


def _numpy_type(kind: pa.DataType) -> np.dtype[Any]:
    """Arrow's own translation asks for pandas in some of its versions."""
    return np.dtype({"float": "float32", "double": "float64"}.get(str(kind), str(kind)))


def _array(values: Any, kind: pa.DataType | None) -> pa.Array:
    found = np.asarray(values) if not isinstance(values, list) else values
    if isinstance(found, np.ndarray) and found.ndim > 1:
        found = list(found)
    try:
        return pa.array(found, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise StoreError(f"a column cannot be written: {error}.") from error
