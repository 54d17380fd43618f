"""From what training hands over to the bytes of one Parquet part.

A part is sorted by the hash of the id and cut into row groups at fixed values of the hash, the same in every part: the
range of all hashes in 2, 4, 8, … equal pieces. A reader that wants one piece of all ids, a *bucket*, takes the row
groups whose statistics lie in it and leaves the rest where it is.

Ids are kept as given, int64 or text, and beside either a 64-bit hash to join by: :func:`sgoif.evidence.hash_ids`, so
that folds, splits and buckets agree wherever they are made. Numpy holds strings at the width of the longest, so that
one id of 10 kB among a million short ones would take 40 GB: here they are hashed in groups of like length, and kept by
Arrow, which stores each at its own length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import ArrayLike, NDArray

from sgoif.errors import StoreError
from sgoif.evidence import hash_ids
from sgoif.records import ScoreBatch
from sgoif.store.schema import FLAGS_NOT_FINITE, IdKind, id_column, schema_of

__all__ = [
    "PartRows",
    "check_kind",
    "encode_part",
    "encode_table",
    "hash_edges",
    "kind_of_ids",
    "sorted_groups",
    "table_of",
    "visit_columns",
]

_MIN_GROUP_ROWS = 8192  # smaller row groups cost more in the footer than they save
_MAX_GROUPS = 32  # 20,000 rows in a part of 64 MB; the footer is then 0.1% of it
_PLAIN_GROUP_ROWS = 122_880  # of tables that are not read by bucket
_JOINED_ROWS = 8192  # steps are joined up to this many rows before they are converted: a step alone is mostly overhead
_WIDE_ID_BYTES = 1024  # fixed-width ids beyond this are converted at once, so that no array of that width grows
_HASHED_AT_ONCE = 16 << 20  # bytes of fixed-width text
_NAMES = {"int": "integers", "string": "strings"}
_CHECKSUMS = {"write_page_checksum": True} if int(pa.__version__.split(".")[0]) >= 15 else {}

Columns = dict[str, Any]  # numpy arrays, and Arrow's for ids
Ids = NDArray[Any]


class PartRows:
    """The rows of one table whose part is not full yet.

    Args:
        table: its name.
        attempt: of the run.
        epoch: of all its rows, where parts are cut by epoch.
        lose: called with rows that could not be converted, and why.
    """

    def __init__(self, table: str, attempt: int, epoch: int | None, lose: Callable[[int, Exception], None]) -> None:
        self.name, self.attempt, self.epoch = table, attempt, epoch
        self.num_rows, self.num_bytes, self.num_blocks = 0, 0, 0
        self.num_visible = 0  # rows that a part on disk holds already
        self._lose = lose
        self._steps: list[ScoreBatch] = []
        self._step_rows = 0
        self._chunks: list[Columns] = []
        self._tables: list[pa.Table] = []

    def add(self, rows: ScoreBatch | pa.Table) -> None:
        """Take a step's visits, or rows of another table."""
        self.num_blocks += 1
        if isinstance(rows, pa.Table):
            self._tables.append(rows)
            self.num_rows += len(rows)
            self.num_bytes += rows.nbytes
            return
        self.num_rows += len(rows.ids)
        is_wide = rows.ids.dtype.itemsize > _WIDE_ID_BYTES
        if is_wide:
            self._convert()
        self._steps.append(rows)
        self._step_rows += len(rows.ids)
        if is_wide or self._step_rows >= _JOINED_ROWS:
            self._convert()

    def encode(self, kind: IdKind, *, is_last: bool = True) -> pa.Buffer | None:
        """Make a part of all rows; None where none is left. Visits are sorted by the hash of their ids.

        Args:
            kind: of the ids.
            is_last: whether the rows may be forgotten.
        """
        if self.name != "visits":
            return encode_table(pa.concat_tables(self._tables, promote_options="default").combine_chunks())
        self._convert()
        schema = schema_of("visits", kind)
        if not self._chunks:
            return None
        # column by column, each taken out of its chunks, so that rows are held once
        joined = {field.name: _join([chunk.pop(field.name) for chunk in self._chunks]) for field in schema}
        self._chunks = [] if is_last else [joined]
        return encode_part(schema, sorted_groups(joined, schema))

    def _convert(self) -> None:
        steps, self._steps, self._step_rows = self._steps, [], 0
        try:
            if steps:
                self._keep(steps)
        except Exception:  # one of them is malformed: the others shall not be lost with it
            for step in steps:
                try:
                    self._keep([step])
                except Exception as error:
                    self.num_rows, self.num_blocks = self.num_rows - len(step.ids), self.num_blocks - 1
                    self._lose(len(step.ids), error)

    def _keep(self, steps: list[ScoreBatch]) -> None:
        self._chunks.append(visit_columns(steps, self.attempt, kind_of_ids(np.asarray(steps[0].ids))))
        self.num_bytes += sum(int(column.nbytes) for column in self._chunks[-1].values())


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
    arrays = {field.name: _cast(given.pop(field.name, None), field, rows) for field in schema}
    extra = {key: value if isinstance(value, pa.Array) else _array(value, None) for key, value in given.items()}
    wide = pa.schema([*schema, *(pa.field(key, value.type) for key, value in extra.items())], schema.metadata)
    return pa.table({**arrays, **extra}, schema=wide), None if id_name is None or not rows else kind


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


def encode_table(table: pa.Table) -> pa.Buffer:
    """Encode a table as a Parquet file, cut into row groups at edges of the hash where its rows are sorted by it."""
    hashes = table["id_hash"].to_numpy() if "id_hash" in table.column_names and len(table) else None
    cuts = pairwise(_cuts(hashes, len(table)))
    return encode_part(table.schema, (table.slice(start, stop - start) for start, stop in cuts))


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


def kind_of_ids(ids: Ids) -> IdKind:
    """Tell whether ids are integers or strings.

    Raises:
        StoreError: They are neither, or a mixture, or do not fit into 64 signed bits.
    """
    kind = ids.dtype.kind
    if ids.ndim != 1:
        raise StoreError(f"ids are a vector, got shape {ids.shape}.")
    if kind == "O" and len(ids):
        if all(isinstance(item, str) for item in ids):
            return "string"
        if all(isinstance(item, int | np.integer) for item in ids):
            return kind_of_ids(np.asarray(ids.tolist()))
    if kind == "u" and len(ids) and int(ids.max()) > np.iinfo(np.int64).max:
        raise StoreError(f"integer ids must fit into 64 signed bits, got {ids.max()}; pass them as strings.")
    if kind in "iu":
        return "int"
    if kind in "UT":
        return "string"
    raise StoreError(f"ids are all integers or all strings, got {ids.dtype}; convert them, for example with str().")


def check_kind(found: IdKind, known: IdKind | None) -> None:
    """Refuse ids of a kind that differs from the run's."""
    if known is not None and found != known:
        raise StoreError(
            f"this run's ids are {_NAMES[known]}, but a block came with {_NAMES[found]}; keep the ids of a run to one "
            "type, or write to another folder."
        )


def arrow_ids(ids: Ids, kind: IdKind) -> tuple[pa.Array, NDArray[np.int64]]:
    r"""Return ids for Arrow, and their hashes.

    UTF-8 has no form for half of a surrogate pair, as in undecodable file names: it is written out as ``\udc80``.
    """
    if kind == "int":
        whole = np.ascontiguousarray(ids, dtype=np.int64)
        return pa.array(whole), hash_ids(whole).view(np.int64)
    texts = ids if ids.dtype.kind == "U" else np.array(ids.tolist(), dtype=object)
    try:
        column = pa.array(texts, pa.string())
        # Arrow ends fixed-width text at its first NUL
        is_whole = texts.dtype.kind != "U" or pc.sum(pc.utf8_length(column)).as_py() == np.char.str_len(texts).sum()
    except (pa.ArrowInvalid, UnicodeError):
        is_whole = False
    if not is_whole:
        plain = [text.encode("utf-8", "backslashreplace").decode() for text in texts.tolist()]
        texts, column = np.array(plain, dtype=object), pa.array(plain, pa.string())
    return column, _hash_texts(texts)


def _cuts(hashes: NDArray[np.int64] | None, num_rows: int) -> list[int]:
    if hashes is None or (hashes[1:] < hashes[:-1]).any():
        return [*range(0, num_rows, _PLAIN_GROUP_ROWS), num_rows]
    groups = 1 << max(0, min(num_rows // _MIN_GROUP_ROWS, _MAX_GROUPS).bit_length() - 1)
    return [0, *np.searchsorted(hashes, hash_edges(groups)).tolist(), num_rows]


def _join(pieces: list[Any]) -> Any:
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


def _cast(values: Any, field: pa.Field, rows: int) -> pa.Array:
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
    are_numbers = isinstance(found, np.ndarray) and np.issubdtype(found.dtype, np.floating)
    try:
        return pa.array(found, kind, from_pandas=are_numbers)  # NaN becomes null, as in the columns of the schema
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise StoreError(f"a column cannot be written: {error}.") from error


def _hash_texts(texts: Ids) -> NDArray[np.int64]:
    if texts.dtype.kind == "U" and texts.dtype.itemsize <= 1024:
        return hash_ids(texts).view(np.int64)
    lengths = (
        np.char.str_len(texts) if texts.dtype.kind == "U" else np.fromiter(map(len, texts), np.int64, count=len(texts))
    )
    widths = 1 << np.ceil(np.log2(np.maximum(lengths, 16))).astype(np.int64)
    hashes = np.empty(len(texts), np.int64)
    for width in np.unique(widths).tolist():
        rows = np.flatnonzero(widths == width)
        for part in np.array_split(rows, 1 + len(rows) * width * 4 // _HASHED_AT_ONCE):
            if len(part):
                hashes[part] = hash_ids(texts[part].astype(f"U{width}")).view(np.int64)
    return hashes
