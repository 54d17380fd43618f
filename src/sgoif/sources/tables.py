"""Tables that are read block by block: Parquet, Arrow, CSV and JSON lines on disk, or a table in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sgoif.errors import SgoifError
from sgoif.files.tables import CSV_SUFFIXES, read_csv, read_json_lines, stream_csv

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["JSON_SUFFIXES", "TABLE_SUFFIXES", "Block", "TableFiles", "TableInMemory", "TableReader", "table_from"]

JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
TABLE_SUFFIXES = (".parquet", ".arrow", *CSV_SUFFIXES, *JSON_SUFFIXES)
_LINES = 20_000  # of JSON at once

Block = tuple[int, Any]  # the position of its first row, and an Arrow table
Part = tuple[int, Callable[[], Any]]  # how many rows, and what reads them
Wanted = Callable[[int, int], bool]  # whether rows from the first to before the last position are needed


class TableReader(Protocol):
    """A table, as its columns and rows are asked for."""

    about: str  # one phrase, for messages
    files: tuple[Path, ...]  # none for a table in memory

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns; types of CSV are those of the first rows."""

    def count(self, column: str) -> int:
        """How many rows there are; where that takes reading, this column alone is read."""

    def blocks(self, columns: Sequence[str], wanted: Wanted | None = None) -> Iterator[Block]:
        """Go through the rows in order; blocks that are not wanted are passed over."""

    def read(self, columns: Sequence[str]) -> pa.Table:
        """Read columns whole, in the type that their values have."""


class TableInMemory:
    """An Arrow table."""

    files: tuple[Path, ...] = ()

    def __init__(self, table: pa.Table, about: str) -> None:
        self.about, self._table = about, table

    @property
    def schema(self) -> pa.Schema:
        return self._table.schema

    def count(self, column: str) -> int:
        return len(self._table)

    def blocks(self, columns: Sequence[str], wanted: Wanted | None = None) -> Iterator[Block]:
        table, start = self._table.select(list(columns)), 0
        for batch in table.to_batches(max_chunksize=_LINES):
            if wanted is None or wanted(start, start + len(batch)):
                yield start, _as_table(batch)
            start += len(batch)

    def read(self, columns: Sequence[str]) -> pa.Table:
        return self._table.select(list(columns))


class TableFiles:
    """Files of one kind with the same columns, one after the other."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = tuple(files)
        self.about = f"'{files[0]}'" if len(files) == 1 else f"'{files[0]}' and {len(files) - 1} files more"

    @cached_property
    def schema(self) -> pa.Schema:
        import pyarrow.parquet as pq

        path = self.files[0]
        if path.suffix == ".parquet":
            return _reading(path, lambda: pq.read_schema(path))
        for _, load in _parts_of(path, None):
            return _reading(path, load).schema
        raise SgoifError(f"'{path}' has no rows.")

    def count(self, column: str) -> int:
        return sum(size for path in self.files for size, _ in _parts_of(path, [column]))

    def blocks(self, columns: Sequence[str], wanted: Wanted | None = None) -> Iterator[Block]:
        start = 0
        for path in self.files:
            for size, load in _parts_of(path, list(columns)):
                if wanted is None or wanted(start, start + size):
                    yield start, _reading(path, load)
                start += size

    def read(self, columns: Sequence[str]) -> pa.Table:
        import pyarrow as pa

        names = list(columns)
        if self.files[0].suffix in CSV_SUFFIXES:  # types of all rows, not of the first ones
            parts = [_reading(path, lambda path=path: read_csv(path).select(names)) for path in self.files]  # type: ignore[misc]
        else:
            parts = [block for _, block in self.blocks(names)]
        return pa.concat_tables(parts, promote_options="permissive")


def table_from(data: Any) -> TableInMemory | None:
    """Take what people hold tables in: pandas, polars, Hugging Face, DuckDB, Arrow or a dictionary; None for others."""
    import pyarrow as pa

    module = type(data).__module__.partition(".")[0]
    if isinstance(data, pa.Table):
        return TableInMemory(data, "the table")
    if isinstance(data, pa.RecordBatchReader):
        return TableInMemory(data.read_all(), "the table")
    if module == "pandas":
        return TableInMemory(pa.Table.from_pandas(data, preserve_index=False), "the DataFrame")
    if module == "polars":
        return TableInMemory(data.to_arrow(), "the DataFrame")
    if module == "datasets" and hasattr(data, "with_format"):
        return TableInMemory(_with_features(data), "the dataset")
    if module in ("duckdb", "_duckdb"):
        found = data.arrow()
        return TableInMemory(found if isinstance(found, pa.Table) else found.read_all(), "the query")
    if isinstance(data, dict):
        try:
            return TableInMemory(pa.table(data), "the table")
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise SgoifError(f"the dictionary is no table of columns of one length: {error}") from error
    return None


def _with_features(data: Any) -> pa.Table:
    """Rows of a dataset, with the features that it declares; pictures stay encoded."""
    table = data.with_format("arrow")[:]
    return table.replace_schema_metadata(data.features.arrow_schema.metadata)


def _parts_of(path: Path, columns: list[str] | None) -> Iterator[Part]:
    """Parts of a file in order: how many rows, and what reads them."""
    readers = {".parquet": _parquet_parts, ".arrow": _arrow_parts}
    reader = readers.get(path.suffix, _csv_parts if path.suffix in CSV_SUFFIXES else _json_parts)
    parts = reader(path, columns)
    while (part := _reading(path, lambda: next(parts, None))) is not None:
        yield part


def _parquet_parts(path: Path, columns: list[str] | None) -> Iterator[Part]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        for number in range(file.num_row_groups):
            load = partial(file.read_row_group, number, columns=columns)
            yield file.metadata.row_group(number).num_rows, load


def _arrow_parts(path: Path, columns: list[str] | None) -> Iterator[Part]:
    import pyarrow as pa

    with pa.memory_map(str(path)) as mapped, pa.ipc.open_stream(mapped) as stream:
        for batch in stream:
            table = _as_table(batch)
            yield len(table), partial(_select, table, columns)


def _csv_parts(path: Path, columns: list[str] | None) -> Iterator[Part]:
    for block in stream_csv(path, columns):
        yield len(block), partial(_select, block, None)


def _json_parts(path: Path, columns: list[str] | None) -> Iterator[Part]:
    rows = _json_rows(path)
    while held := list(islice(rows, _LINES)):
        names = columns or list(dict.fromkeys(name for row in held for name in row))
        yield len(held), partial(_columns_of, held, names)


def _columns_of(rows: list[dict[str, Any]], names: list[str]) -> pa.Table:
    import pyarrow as pa

    return pa.table({name: [row.get(name) for row in rows] for name in names})


def _select(table: pa.Table, columns: list[str] | None) -> pa.Table:
    return table if columns is None else table.select(columns)


def _json_rows(path: Path) -> Iterator[dict[str, Any]]:
    with open(path, encoding="utf-8-sig") as file:
        first = file.read(1)
        file.seek(0)
        if first == "[":
            found = json.load(file)
            if not all(isinstance(item, dict) for item in found):
                raise SgoifError(f"'{path}' is no list of objects; write one JSON object per line.")
            yield from found
            return
        for _, row in read_json_lines(file, path):
            yield row


def _as_table(batch: pa.RecordBatch) -> pa.Table:
    import pyarrow as pa

    return pa.Table.from_batches([batch])


def _reading(path: Path, read: Callable[[], Any]) -> Any:
    import pyarrow as pa

    try:
        return read()
    except UnicodeDecodeError as error:
        raise SgoifError(f"'{path}' is not UTF-8 text (byte {error.start}); save it as UTF-8.") from error
    except (pa.ArrowException, OSError) as error:
        raise SgoifError(f"'{path}' cannot be read as {path.suffix[1:]}: {str(error).splitlines()[0]}") from error
