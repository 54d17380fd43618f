"""Files of the user's own, read with care and written whole or not at all."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from sgoif.errors import SgoifError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "CSV_SUFFIXES",
    "encode_csv",
    "guard",
    "read_columns",
    "read_csv",
    "read_csv_rows",
    "read_json_lines",
    "replacing",
    "stream_csv",
    "unguard",
    "write_csv",
    "write_csv_rows",
    "write_parquet",
    "write_text",
]

CSV_SUFFIXES = (".csv", ".tsv")
_DELIMITERS = ",;\t"
# What a spreadsheet runs: a cell that begins with one of these, after blanks and quotes. Full-width ones count too.
# The single quote is among them so that reading undoes writing.
_RUNNABLE = "[\" ]*[=+\\-@'\uff1d\uff0b\uff0d\uff20]"
# A cell may be split again: a spreadsheet of another country separates by semicolons, and then quotes in the middle of
# its cells mean nothing, so that a new cell begins after every semicolon, tab and end of line.
_CELL_STARTS = f"(?:^(?=[\t\r]|{_RUNNABLE})|(?<=[;\t\r\n])(?={_RUNNABLE}))"
_GUARDED_STARTS = f"(?:^'(?=[\t\r]|{_RUNNABLE})|(?<=[;\t\r\n])'(?={_RUNNABLE}))"
_TO_GUARD, _TO_UNGUARD = re.compile(_CELL_STARTS), re.compile(_GUARDED_STARTS)
_TO_QUOTE = re.compile(r"""[",;\t\r\n]|^\s|\s$""")


def guard(text: str) -> str:
    """Put a quote before whatever a spreadsheet would run as a formula, whether it separates by comma or semicolon.

    >>> guard("=HYPERLINK(1)"), guard("cat;=1"), guard("cat")
    ("'=HYPERLINK(1)", "cat;'=1", 'cat')
    """
    return _TO_GUARD.sub("'", text)


def unguard(text: str) -> str:
    """Undo :func:`guard`.

    >>> unguard("'=1"), unguard("cat;'=1"), unguard("'tis")
    ('=1', 'cat;=1', "'tis")
    """
    return _TO_UNGUARD.sub("", text) if "'" in text else text


def read_json_lines(file: IO[str], path: str | os.PathLike[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Go through an open file of one JSON object per line, with the number of each line; blank ones are passed over.

    Raises:
        SgoifError: A line is no JSON object; the message names the path and the line.
    """
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise SgoifError(f"line {number} of '{path}' is no JSON: {error}") from error
        if not isinstance(row, dict):
            raise SgoifError(f"line {number} of '{path}' is no JSON object; write one object per line.")
        yield number, row


def read_csv_rows(path: str | os.PathLike[str], needed: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Go through a CSV file as spreadsheets write them, with the number of the line that each row ends on.

    Commas, semicolons or tabs, quotes, a byte order mark, blank lines and ids of any length are fine. What
    :func:`guard` put before a text is taken off.

    Args:
        path: the file.
        needed: columns it must have; case and blanks around their names do not matter.

    Raises:
        SgoifError: It is no file, not UTF-8, no CSV, or lacks a column.
    """
    if os.path.exists(path) and not os.path.isfile(path):  # a pipe would be waited for
        raise SgoifError(f"'{path}' is no regular file; write the rows to a file first.")
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            delimiter = max(_DELIMITERS, key=first.count)
            file.seek(0)
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            header = [name.strip().lower() for name in next(reader, [])]
            missing = [name for name in needed if name not in header]
            if missing:
                raise SgoifError(
                    f"'{path}' has no column {' and no '.join(missing)}; its first line names "
                    f"{', '.join(header) or 'none'}."
                )
            for cells in reader:
                if any(cell.strip() for cell in cells):
                    cells += [""] * (len(header) - len(cells))
                    yield reader.line_num, dict(zip(header, map(unguard, cells)))
    except UnicodeDecodeError as error:
        raise SgoifError(
            f"'{path}' is not UTF-8 text (byte {error.start}); save it as 'CSV UTF-8' and try again."
        ) from error
    except csv.Error as error:
        raise SgoifError(f"'{path}' cannot be read as CSV: {error}.") from error


def read_columns(path: str, names: Sequence[str]) -> pa.Table:
    """Read columns of a Parquet or CSV file as text.

    Raises:
        SgoifError: The file is of another kind, cannot be read, or lacks a column.
    """
    import pyarrow as pa
    import pyarrow.parquet

    suffix = Path(path).suffix.lower()
    if suffix not in (".parquet", *CSV_SUFFIXES):
        raise SgoifError(f"'{path}' must end in .parquet, .csv or .tsv.")
    if not os.path.isfile(path):
        raise SgoifError(f"'{path}' is no file.")
    try:
        if suffix != ".parquet":
            return read_csv(path, names)
        _need(path, pyarrow.parquet.read_schema(path).names, names)
        table = pyarrow.parquet.read_table(path, columns=list(names))
        return pa.table({name: table[name].cast(pa.string()) for name in names})
    except (pa.ArrowException, OSError) as error:
        raise SgoifError(f"'{path}' cannot be read: {str(error).splitlines()[0]}") from error


def read_csv(path: str | os.PathLike[str], names: Sequence[str] | None = None) -> pa.Table:
    """Read columns of a CSV file as text, or all columns, each in the type that its values have.

    Commas, semicolons or tabs, quotes and a byte order mark are fine, as in :func:`read_csv_rows`.
    """
    import pyarrow.csv

    return _unguarded(pyarrow.csv.read_csv(path, **_csv_options(path, names)))


def stream_csv(path: str | os.PathLike[str], names: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Go through columns of a CSV file as text, a block of rows at a time; all columns in types of the first rows."""
    import pyarrow as pa
    import pyarrow.csv

    with pyarrow.csv.open_csv(path, **_csv_options(path, names)) as reader:
        for batch in reader:
            yield _unguarded(pa.Table.from_batches([batch]))


def _csv_options(path: str | os.PathLike[str], names: Sequence[str] | None) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.csv

    with open(path, encoding="utf-8-sig", errors="replace") as file:
        first = file.readline()
    delimiter = max(_DELIMITERS, key=first.count)
    if names is not None:
        _need(path, next(csv.reader(io.StringIO(first), delimiter=delimiter), []), names)
    types = dict.fromkeys(names or (), pa.string())
    return {
        "parse_options": pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        "convert_options": pyarrow.csv.ConvertOptions(include_columns=list(types), column_types=types),
    }


def _unguarded(table: pa.Table) -> pa.Table:
    import pyarrow as pa

    found = {name: table[name] for name in table.column_names}
    for name, column in found.items():
        if column.type == pa.string():
            texts = (None if text is None else unguard(text) for text in column.to_pylist())
            found[name] = pa.array(texts, pa.string())
    return pa.table(found)


def write_csv(table: pa.Table, path: str | os.PathLike[str]) -> None:
    """Write a table as CSV, as :func:`write_csv_rows` does."""
    rows = (row for batch in table.to_batches() for row in zip(*(column.to_pylist() for column in batch.columns)))
    write_csv_rows(path, table.column_names, rows)


def write_csv_rows(path: str | os.PathLike[str], header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write rows as CSV: UTF-8, one header line, empty cells for nothing, texts that no spreadsheet runs."""
    with replacing(path) as file:
        for line in _csv_lines(header, rows):
            file.write(line)


def encode_csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    """Give the bytes of a CSV file as :func:`write_csv_rows` writes it, for a place that is no local file."""
    return b"".join(_csv_lines(header, rows))


def _csv_lines(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[bytes]:
    for row in chain([header], rows):
        line = ",".join(map(_cell, row)) + "\n"
        yield line.encode("utf-8", "backslashreplace")


def write_parquet(table: pa.Table, path: str | os.PathLike[str]) -> None:
    """Write a table as Parquet."""
    import pyarrow.parquet

    with replacing(path) as file:
        pyarrow.parquet.write_table(table, file)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file so that it is there in full or not at all."""
    with replacing(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a file that takes its place when it is complete; until then, and after an error, the old one stays."""
    place = Path(path)
    if place.is_dir():
        raise SgoifError(f"'{place}' is a folder; name a file.")
    if place.exists() and not place.is_file():  # /dev/stdout: nothing to put in its place
        with place.open("wb") as file:
            yield file
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    handle, beside = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name[:40]}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(beside, _mode(place))
        os.replace(beside, place)
    except BaseException:
        os.unlink(beside)
        raise


def _cell(value: Any) -> str:
    """A cell as text, in quotes where any kind of separator stands in it."""
    if not isinstance(value, str):
        return "" if value is None or value != value else _quote(str(value))
    return _quote(guard(value))


def _quote(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if _TO_QUOTE.search(text) else text


def _mode(place: Path) -> int:
    """Permissions of the file that is replaced, or those that a new one would have."""
    if place.exists():
        return place.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _need(path: str | os.PathLike[str], present: Sequence[str], names: Sequence[str]) -> None:
    missing = [name for name in names if name not in present]
    if missing:
        raise SgoifError(f"'{path}' has no column {' and no '.join(missing)}; it has {', '.join(map(str, present))}.")
