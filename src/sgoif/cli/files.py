"""Files of the user's own, read with care and written whole or not at all."""

from __future__ import annotations

import csv
import io
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from sgoif.errors import SgoifError

__all__ = ["read_columns", "read_csv_rows", "write_csv", "write_parquet", "write_text"]

_DELIMITERS = ",;\t"


def read_csv_rows(path: str | os.PathLike[str], needed: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Go through a CSV file as spreadsheets write them, with the number of the line that each row ends on.

    Commas, semicolons or tabs, quotes, a byte order mark, blank lines and ids of any length are fine.

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
                    yield reader.line_num, dict(zip(header, cells))
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


def write_csv(table: pa.Table, path: str) -> None:
    """Write a table as CSV: UTF-8, one header line, empty cells for nothing."""
    lines = io.StringIO(newline="")
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(table.column_names)
    for batch in table.to_batches():
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            writer.writerow(["" if value is None or value != value else value for value in row])
    write_text(path, lines.getvalue())


def write_parquet(table: pa.Table, path: str) -> None:
    """Write a table as Parquet."""
    import pyarrow.parquet

    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink)
    _write_whole(path, sink.getvalue().to_pybytes())


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file so that it is there in full or not at all."""
    _write_whole(path, text.encode("utf-8", "backslashreplace"))


def _write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    place = Path(path)
    if place.is_dir():
        raise SgoifError(f"'{place}' is a folder; name a file.")
    if place.exists() and not place.is_file():  # /dev/stdout: nothing to put in its place
        place.write_bytes(data)
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    handle, beside = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name[:40]}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(beside, _mode(place))
        os.replace(beside, place)
    except BaseException:
        os.unlink(beside)
        raise


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
