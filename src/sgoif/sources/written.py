"""Examples that are no pictures: a text, or a row of a table as its cells by their columns."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, TypeGuard

__all__ = ["Written", "as_line", "as_lines", "cell_text", "is_missing", "is_written", "written_hash"]

Written = str | Mapping[str, Any]


def is_written(value: Any) -> TypeGuard[Written]:
    """Whether an example is a text or a row; pictures that are stored as ``{bytes, path}`` are none.

    >>> is_written("hello"), is_written({"age": 3}), is_written(b"GIF89a"), is_written({"bytes": b"GIF89a"})
    (True, True, False, False)
    """
    return isinstance(value, str) or (isinstance(value, Mapping) and not isinstance(value.get("bytes"), bytes))


def is_missing(value: Any) -> bool:
    """Whether a cell holds nothing: null, NaN or an empty text."""
    return value is None or (isinstance(value, str) and not value.strip()) or bool(value != value)


def cell_text(value: Any) -> str:
    """Write a cell for people; numbers to six digits.

    >>> cell_text(0.30000000000000004), cell_text(12000000), cell_text(True), cell_text(None)
    ('0.3', '12000000', 'True', '')
    """
    if is_missing(value):
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def as_lines(value: Written) -> str:
    r"""A text as it stands; a row as lines of ``column: value``.

    >>> as_lines({"age": 31.0, "job": None})
    'age: 31\njob: (missing)'
    """
    if isinstance(value, str):
        return value
    return "\n".join(f"{name}: {cell_text(cell) or '(missing)'}" for name, cell in value.items())


def as_line(value: Written) -> str:
    r"""The same in one line; cells of a row with semicolons between them.

    >>> as_line("two\n  lines"), as_line({"age": 31, "job": "clerk"})
    ('two lines', 'age: 31; job: clerk')
    """
    if isinstance(value, str):
        return " ".join(value.split())
    return "; ".join(" ".join(line.split()) for line in as_lines(value).split("\n"))


def written_hash(value: Written) -> str:
    """Name a text or a row by its content: 16 hexadecimal characters of BLAKE2b.

    The order of columns does not matter; a column that is added does.

    >>> written_hash({"a": 1, "b": float("nan")}) == written_hash({"b": None, "a": 1})
    True
    """
    if isinstance(value, str):
        content = f"text\0{value}"
    else:
        cells = {str(name): None if is_missing(cell) else cell for name, cell in value.items()}
        content = f"row\0{json.dumps(cells, sort_keys=True, default=str)}"
    return hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
