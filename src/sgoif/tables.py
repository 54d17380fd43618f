"""The tables of a run, wherever they are: as arrays in memory, or in files that are read where they lie."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SgoifError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Columns", "FileTables", "MemoryTables", "Tables", "arrow_table"]

Columns = Mapping[str, NDArray[Any]]

_ALWAYS = ("id", "p_mislabeled", "p_mislabeled_low", "p_mislabeled_high", "no_p_reason")  # whatever is in them


class Tables(Protocol):
    """Where a run's tables are: ``examples``, ``visits``, ``holdout``, ``anchors``."""

    def columns(self, name: str) -> Columns:
        """Read a whole table as arrays; empty where there is none."""

    def arrow(self, name: str) -> pa.Table:
        """Read a whole table as Arrow."""

    def sql(self, query: str, **parameters: Any) -> pa.Table:
        """Answer one SELECT over the tables."""

    @property
    def url(self) -> str | None:
        """Where they lie; None for those held in memory."""


def _arrow(name: str, column: NDArray[Any]) -> pa.Array:
    """A column as it is on disk: null for what is not a number, which a ranking would begin with."""
    import pyarrow as pa

    if name == "no_p_reason":
        return pa.array(column, pa.string())
    return pa.array(column, from_pandas=bool(np.issubdtype(column.dtype, np.floating)))


class MemoryTables:
    """Tables held as arrays."""

    url = None

    def __init__(self, tables: Mapping[str, Columns]) -> None:
        self._tables = dict(tables)

    def columns(self, name: str) -> Columns:
        return self._tables.get(name, {})

    def arrow(self, name: str) -> pa.Table:
        """Read a whole table as Arrow; one that nobody filled has the columns of the schema, and no rows."""
        from sgoif.store.schema import TABLES, schema_of

        columns = self.columns(name)
        return schema_of(name, "int").empty_table() if not columns and name in TABLES else arrow_table(columns)

    def sql(self, query: str, **parameters: Any) -> pa.Table:
        import duckdb

        from sgoif.store.confined import confine
        from sgoif.store.schema import TABLES

        with duckdb.connect(":memory:") as connection:
            for name in {*self._tables, *TABLES}:
                connection.register(name, self.arrow(name))
            confine(connection)
            try:
                return connection.sql(query, params=parameters or None).to_arrow_table()
            except duckdb.Error as error:
                raise SgoifError(f"the query was refused: {error}") from error


class FileTables:
    """Tables of a run on disk or in an object store, read where they lie."""

    def __init__(self, url: str | os.PathLike[str]) -> None:
        from sgoif.store import RunFiles

        self.files, self.url = RunFiles(url), str(url)

    def columns(self, name: str) -> Columns:
        table = self.arrow(name)
        known = [key for key in table.column_names if not _is_spare(key, table[key])]
        return {key: table[key].to_numpy(zero_copy_only=False) for key in known}

    def arrow(self, name: str) -> pa.Table:
        return self.files.table(name)

    def sql(self, query: str, **parameters: Any) -> pa.Table:
        return self.files.sql(query, **parameters)


def _is_spare(name: str, column: pa.ChunkedArray) -> bool:
    """Whether nobody filled a column of the schema. A signal that never was a number is there, as NaN."""
    import pyarrow as pa

    if not len(column) or column.null_count < len(column):
        return False
    return name not in _ALWAYS and not pa.types.is_floating(column.type)


def arrow_table(rows: Columns) -> pa.Table:
    """Columns as an Arrow table, null where there is no number."""
    import pyarrow as pa

    return pa.table({name: _arrow(name, column) for name, column in rows.items()})
