"""Tables joined in DuckDB, outside of any run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa

__all__ = ["join", "joining"]


@contextmanager
def joining(memory_limit: str = "1GB") -> Iterator[duckdb.DuckDBPyConnection]:
    """Open DuckDB for a while; what does not fit into its memory goes to a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="sgoif-sql-", ignore_cleanup_errors=True) as folder:
        settings: dict[str, Any] = {"threads": "1", "memory_limit": memory_limit, "temp_directory": folder}
        with duckdb.connect(":memory:", config=settings) as connection:
            yield connection


def join(query: str, tables: Mapping[str, pa.Table]) -> pa.Table:
    """Answer one SELECT over some Arrow tables.

    >>> join("select a + 1 as b from t", {"t": pa.table({"a": [1, 2]})}).to_pydict()
    {'b': [2, 3]}
    """
    with joining() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        return connection.sql(query).to_arrow_table()
