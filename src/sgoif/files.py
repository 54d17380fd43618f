"""Files of the user's own, read with care and written whole or not at all."""

from __future__ import annotations

import csv
import io
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from sgoif.errors import SgoifError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "guarded",
    "read_columns",
    "read_csv_rows",
    "replacing",
    "unguarded",
    "write_csv",
    "write_csv_rows",
    "write_parquet",
    "write_text",
]

_DELIMITERS = ",;\t"
_RUN_BY_SPREADSHEETS = ("=", "+", "-", "@", "\t", "\r", "'")  # the quote too, so that reading undoes writing


def guarded(text: str) -> str:
    """Put a quote before a text that a spreadsheet would run as a formula.

    >>> guarded("=HYPERLINK(1)"), guarded("cat")
    ("'=HYPERLINK(1)", 'cat')
    """
    return f"'{text}" if text.startswith(_RUN_BY_SPREADSHEETS) else text


def unguarded(text: str) -> str:
    """Undo :func:`guarded`.

    >>> unguarded("'=1"), unguarded("'tis")
    ('=1', "'tis")
    """
    return text[1:] if text.startswith("'") and text.startswith(_RUN_BY_SPREADSHEETS, 1) else text


def read_csv_rows(path: str | os.PathLike[str], needed: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Go through a CSV file as spreadsheets write them, with the number of the line that each row ends on.

    Commas, semicolons or tabs, quotes, a byte order mark, blank lines and ids of any length are fine. What
    :func:`guarded` put before a text is taken off.

    Args:
        path: the file.
        needed: columns it must have; case and blanks around their names do not matter.

    Raises:
        SgoifError: The file is not UTF-8, or lacks a column.
    """
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
                    yield reader.line_num, dict(zip(header, map(unguarded, cells)))
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
    import pyarrow.csv
    import pyarrow.parquet

    suffix = Path(path).suffix.lower()
    if suffix not in (".parquet", ".csv", ".tsv"):
        raise SgoifError(f"'{path}' must end in .parquet, .csv or .tsv.")
    if not os.path.isfile(path):
        raise SgoifError(f"'{path}' is no file.")
    try:
        if suffix == ".parquet":
            present = pyarrow.parquet.read_schema(path).names
            _need(path, present, names)
            table = pyarrow.parquet.read_table(path, columns=list(names))
        else:
            with open(path, encoding="utf-8-sig", errors="replace") as file:
                first = file.readline()
            delimiter = max(_DELIMITERS, key=first.count)
            _need(path, next(csv.reader(io.StringIO(first), delimiter=delimiter), []), names)
            table = pyarrow.csv.read_csv(
                path,
                parse_options=pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
                convert_options=pyarrow.csv.ConvertOptions(
                    include_columns=list(names), column_types=dict.fromkeys(names, pa.string())
                ),
            )
        return pa.table({name: table[name].cast(pa.string()) for name in names})
    except (pa.ArrowException, OSError) as error:
        raise SgoifError(f"'{path}' cannot be read: {str(error).splitlines()[0]}") from error


def write_csv(table: pa.Table, path: str | os.PathLike[str]) -> None:
    """Write a table as CSV, as :func:`write_csv_rows` does."""
    rows = (row for batch in table.to_batches() for row in zip(*(column.to_pylist() for column in batch.columns)))
    write_csv_rows(path, table.column_names, rows)


def write_csv_rows(path: str | os.PathLike[str], header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write rows as CSV: UTF-8, one header line, empty cells for nothing, texts that no spreadsheet runs."""
    with replacing(path) as file:
        lines = io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", newline="")
        writer = csv.writer(_Lines(lines), lineterminator="\r\n")  # so that a cell with either of the two is quoted
        writer.writerow(header)
        writer.writerows([_cell(value) for value in row] for row in rows)
        lines.flush()
        lines.detach()


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


class _Lines:
    """Ends lines with one character instead of two."""

    def __init__(self, file: IO[str]) -> None:
        self.file = file

    def write(self, line: str) -> int:
        return self.file.write(line.removesuffix("\r\n") + "\n")


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return guarded(value)
    return "" if value is None or value != value else value


def _mode(place: Path) -> int:
    """Permissions of the file that is replaced, or those that a new one would have."""
    if place.exists():
        return place.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _need(path: str, present: Sequence[str], names: Sequence[str]) -> None:
    missing = [name for name in names if name not in present]
    if missing:
        raise SgoifError(f"'{path}' has no column {' and no '.join(missing)}; it has {', '.join(map(str, present))}.")
