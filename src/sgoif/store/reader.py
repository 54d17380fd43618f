"""Reads a run where it lies: its tables through Arrow, and questions to them in SQL through DuckDB.

Rows that a resumed run repeated are hidden. Parts that cannot be read are passed over, counted and named in
:attr:`RunFiles.skipped`; a damaged part never stops a query.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa

from sgoif.errors import StoreError
from sgoif.files.locations import place_of
from sgoif.store.confined import confine, quote_path, refuse_files
from sgoif.store.info import read_info
from sgoif.store.parts import DAMAGE, UNREACHABLE, Part, SkippedPart, check_parts, list_parts, read_rows, trouble_of
from sgoif.store.schema import TABLES, IdKind, id_column, kind_field, schema_of, step_column

__all__ = ["RunFiles"]

_USERS_MISTAKES = (
    duckdb.PermissionException,
    duckdb.ParserException,
    duckdb.BinderException,
    duckdb.CatalogException,
    duckdb.ConversionException,
)
_SQL_TYPES = {"int64": "BIGINT", "int32": "INTEGER", "float": "FLOAT", "double": "DOUBLE", "string": "VARCHAR"} | {
    "bool": "BOOLEAN",
    "list<element: float>": "FLOAT[]",
    "list<item: float>": "FLOAT[]",
}


class RunFiles:
    """The files of a run, opened for reading; what was written later is seen after :meth:`refresh`.

    Args:
        url: the run's folder: a local path or any fsspec URL.
        memory_limit: what DuckDB may use before it spills to a temporary folder.
        threads: of DuckDB.

    >>> files = RunFiles("runs/today")  # doctest: +SKIP
    >>> files.sql("select id, harm from visits where step > $s order by harm desc limit 20", s=100)  # doctest: +SKIP
    """

    def __init__(self, url: str | os.PathLike[str], *, memory_limit: str = "1GB", threads: int = 1) -> None:
        self.place, self.url = place_of(url), str(url)
        self.memory_limit, self.threads = memory_limit, threads
        self._connection: Any = None
        self._views: set[str] = set()
        self._is_confined = False  # whether DuckDB itself keeps a query to the run's files
        self.refresh()

    def __enter__(self) -> RunFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def refresh(self) -> None:
        """Look at the run again."""
        self.close()
        self.info: dict[str, Any] = read_info(self.place)
        self._parts: dict[str, list[Part]] = {}
        self._skipped: dict[str, list[SkippedPart]] = {}

    def close(self) -> None:
        """Let go of DuckDB; a later query opens it again."""
        if self._connection is not None:
            self._connection.close()
        self._connection, self._views = None, set()

    @property
    def is_finished(self) -> bool:
        """Whether the run ended by itself; otherwise it is running, or was killed."""
        return self.info.get("state") == "finished"

    def id_kind(self, table: str = "visits") -> IdKind:
        """Tell the type of a table's ids: as ``run.json`` says, else as the parts show."""
        field = kind_field(table)
        for other in (table, *TABLES):
            if self.info.get(field) is None and kind_field(other) == field and id_column(other) is not None:
                self.parts(other)
        known: IdKind | None = self.info.get(field)
        return known or "int"

    @property
    def skipped(self) -> list[SkippedPart]:
        """Parts that could not be used, of every table, with the reason."""
        for table in TABLES:
            self.parts(table)
        return [item for table in TABLES for item in self._skipped[table]]

    def parts(self, table: str) -> list[Part]:
        """Name the sound parts of a table whose rows count; footers are read on first use."""
        if table not in TABLES:
            raise StoreError(f"no table {table!r}; a run has {', '.join(TABLES)}.")
        if table not in self._parts:
            named = list_parts(self.place, table, self.info)
            field = kind_field(table)
            self._parts[table], self._skipped[table], self.info[field] = check_parts(
                self.place, named, self.info.get(field)
            )
        return self._parts[table]

    def batches(self, table: str, columns: list[str] | None = None) -> Iterator[pa.Table]:
        """Go through a table in pieces of one row group, in no order that means anything.

        A part that turns out to be damaged within is passed over from there on and named in :attr:`skipped`.
        """
        for part in list(self.parts(table)):
            yield from self.read_part(part, columns)

    def read_part(
        self, part: Part, columns: list[str] | None = None, groups: list[int] | None = None
    ) -> Iterator[pa.Table]:
        """Go through some row groups of one part, as :meth:`batches` does."""
        try:
            yield from read_rows(self.place, part, columns, groups)
        except UNREACHABLE:
            raise
        except DAMAGE as error:
            self._give_up(part, f"{type(error).__name__}: {error}")

    def empty(self, table: str) -> pa.Table:
        """Return a table's columns without rows."""
        return schema_of(table, self.id_kind(table)).empty_table()

    def table(self, table: str, columns: list[str] | None = None) -> pa.Table:
        """Read a whole table; columns that some parts lack are null there."""
        empty = self.empty(table)
        pieces = list(self.batches(table, columns))
        if columns is not None:
            empty = empty.select([name for name in columns if name in empty.column_names])
        try:
            return pa.concat_tables([empty, *pieces], promote_options="default")
        except pa.ArrowException as error:
            raise StoreError(f"parts of {table!r} in {self.place.url!r} differ in their columns: {error}.") from error

    def sql(self, query: str, /, **parameters: Any) -> pa.Table:
        """Ask a question in SQL over ``visits``, ``holdout``, ``anchors`` and ``examples``, in place.

        A query reads no other files: a run may be of somebody else, and so may the query.

        Args:
            query: one SELECT; ``$name`` stands for a parameter.
            parameters: their values.

        Raises:
            StoreError: The query is no SELECT, or DuckDB refuses it.
        """
        try:
            return self._ask(query, parameters)
        except _USERS_MISTAKES as error:
            raise StoreError(f"the query was refused: {error}") from error
        except duckdb.Error as error:
            # either the query's own trouble, or a part that is damaged inside: the footer does not show it
            if not self._verify(self._find_names(query)):
                raise StoreError(f"the query failed: {error}") from error
        self.close()
        try:
            return self._ask(query, parameters)
        except duckdb.Error as error:
            raise StoreError(f"the query failed: {error}") from error

    def _ask(self, query: str, parameters: dict[str, Any]) -> pa.Table:
        connection = self._connect()
        statements = connection.extract_statements(query)
        allowed = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)
        if len(statements) != 1 or statements[0].type not in allowed:
            kinds = ", ".join(str(item.type).rpartition(".")[2] for item in statements) or "nothing"
            raise StoreError(f"sql() takes one SELECT, and a run is read-only; got {kinds}.")
        if not self._is_confined:
            refuse_files(connection, query)
        for table in self._find_names(query):
            if table not in self._views:
                connection.execute(f'create view "{table}" as {self._view(table)}')
                self._views.add(table)
        answer = connection.sql(query, params=parameters or None)
        return answer.to_arrow_table()

    def _connect(self) -> Any:
        if self._connection is None:
            folder = tempfile.mkdtemp(prefix="sgoif-sql-")
            settings: dict[str, Any] = {
                "memory_limit": self.memory_limit,
                "threads": str(self.threads),
                "temp_directory": folder,
                "preserve_insertion_order": "false",  # rows come in no order; keeping one costs memory
                "autoinstall_known_extensions": "false",  # nothing is fetched from anywhere
                "autoload_known_extensions": "false",
            }
            self._connection = duckdb.connect(":memory:", config=settings)
            weakref.finalize(self._connection, shutil.rmtree, folder, ignore_errors=True)
            if not self.place.is_local:
                self._connection.register_filesystem(self.place.fs)
            self._is_confined = confine(self._connection, [self.place.address(table) for table in TABLES])
        return self._connection

    def _find_names(self, query: str) -> list[str]:
        return [table for table in TABLES if re.search(rf"\b{table}\b", query, re.IGNORECASE)]

    def _view(self, table: str) -> str:
        """One reading of all parts per limit of steps, so that DuckDB passes over whole row groups."""
        schema = schema_of(table, self.id_kind(table))
        empty = ", ".join(f'cast(null as {_SQL_TYPES[str(f.type)]}) as "{f.name}"' for f in schema)
        groups: dict[int | None, list[str]] = {}
        for part in self.parts(table):
            groups.setdefault(part.limit, []).append(quote_path(self.place.address(part.path)))
        # columns beyond the schema may be in some parts alone; visits have none, and 10,000 footers need not be read
        by_name = str(table != "visits").lower()
        selects = [f"select {empty} where false"]
        for limit, paths in groups.items():
            # hive partitions off: a folder called `lr=0.1` is no column
            source = f"read_parquet([{', '.join(paths)}], hive_partitioning=false, union_by_name={by_name})"
            where = "" if limit is None else f' where "{step_column(table)}" < {limit}'
            selects.append(f"select * from {source}{where}")
        return " union all by name ".join(selects) if table != "visits" else " union all ".join(selects)

    def _verify(self, tables: list[str]) -> bool:
        """Read every part of some tables in full, give up the damaged ones, and tell whether there were any."""
        damaged = False
        for table in tables:
            for part in list(self.parts(table)):
                reason = trouble_of(self.place, part)
                if reason is not None:
                    self._give_up(part, reason)
                    damaged = True
        return damaged

    def _give_up(self, part: Part, reason: str) -> None:
        self._parts[part.table] = [kept for kept in self._parts[part.table] if kept.path != part.path]
        self._skipped[part.table].append(SkippedPart(part.path, reason.splitlines()[0][:200]))
        self._views.discard(part.table)
        if self._connection is not None:
            self.close()
