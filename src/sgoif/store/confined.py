"""DuckDB that reads the files of one run and no others, whatever it is asked.

A query may come with a run or a report of somebody else. It must not read the user's files or object store.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import duckdb

from sgoif.errors import StoreError

__all__ = ["confine", "quote_path", "refuse_files"]


def confine(connection: Any, folders: Sequence[str] = ()) -> bool:
    """Allow a connection to read below some folders only, for good; False where this DuckDB (before 1.2) cannot.

    Patterns are checked as they are written, so a folder is allowed in both spellings.
    """
    with contextlib.suppress(duckdb.Error):  # unknown to old versions
        connection.execute("set python_enable_replacements = false")  # a table is never a local variable
    allowed = {spelling for folder in folders for spelling in (_literal(f"{folder}/"), quote_path(f"{folder}/"))}
    try:
        if allowed:
            connection.execute(f"set allowed_directories = [{', '.join(sorted(allowed))}]")
        connection.execute("set enable_external_access = false")
    except duckdb.CatalogException:
        return False
    finally:
        connection.execute("set lock_configuration = true")
    return True


def quote_path(path: str) -> str:
    """Write a path as an SQL string that names this file and no other, whatever characters are in it."""
    return _literal(re.sub(r"([*?\[])", r"[\1]", path))


def refuse_files(connection: Any, query: str) -> None:
    """Raise for a query that names a file or calls a table function; for versions that cannot be confined.

    Raises:
        StoreError: It does.
    """
    (told,) = connection.execute(f"select json_serialize_sql({_literal(query)})").fetchone()
    tree = json.loads(told)
    if tree.get("error"):
        raise StoreError(f"the query was refused: {tree.get('error_message', 'it is no SELECT')}.")
    for node in _nodes(tree):
        name = str(node.get("table_name", ""))
        if node.get("type") == "TABLE_FUNCTION" or (node.get("type") == "BASE_TABLE" and not name.isidentifier()):
            raise StoreError("the query was refused: it reads the run's tables by name, and no files or functions.")


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
    for item in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _nodes(item)


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
