"""The answer to a query as a table, by DuckDB: over Parquet, CSV and JSON files, or in a database file."""

from __future__ import annotations

from pathlib import Path

from sgoif.errors import SgoifError
from sgoif.sources.tables import TableInMemory

__all__ = ["run_query"]


def run_query(query: str, database: str | Path | None = None) -> TableInMemory:
    """Answer one SELECT; nothing is written.

    Args:
        query: one SELECT, over files (``from 'shop/*.parquet'``) or tables of the database.
        database: a DuckDB file, opened for reading.

    Raises:
        SgoifError: It is no single SELECT, or cannot be answered.
    """
    import duckdb

    try:
        statements = duckdb.extract_statements(query)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise SgoifError("the query must be one SELECT; others might write.")
        if database is not None and not Path(database).is_file():
            raise SgoifError(f"'{database}' does not exist; beside a query, DATA is a DuckDB database or left out.")
        with duckdb.connect(str(database or ":memory:"), read_only=database is not None) as connection:
            return TableInMemory(connection.sql(query).to_arrow_table(), "the query")
    except duckdb.Error as error:
        raise SgoifError(f"the query cannot be answered: {str(error).splitlines()[0]}") from error
