"""Examples of a dataset or of tables, by position or by their ids; and of a function from an id to an example."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from sgoif.errors import SgoifError
from sgoif.inputs.ids import ids_of, is_subset, is_with_ids
from sgoif.pictures.decode import PictureError
from sgoif.sources.columns import ID_COLUMNS, IMAGE_COLUMNS, LABEL_COLUMNS, SUFFIXES, TEXT_COLUMNS, ColumnNames
from sgoif.sources.folders import FolderPictures
from sgoif.sources.labelled import TableSource
from sgoif.sources.reading import PicturePlace, Positions, plain_id, show_id
from sgoif.sources.roles import Roles
from sgoif.sources.tables import TableFiles, TableInMemory

__all__ = ["DatasetPictures", "FunctionPictures", "TablePictures"]

_KEYS = (*IMAGE_COLUMNS, "pixel_values")
_HELD = 256  # pictures held encoded at once, so that those of one row group are read together
_HELD_WRITTEN = 10_000  # texts or rows
_LONGEST_PATH = 4096
_PLAIN = (str, bool, int, float, Decimal, date, time, np.number)  # what a cell of a row may be


class DatasetPictures(PicturePlace):
    """``dataset[i]``: a picture or a text, a tuple that starts with one, or a dict with one; else the cells of a dict.

    Ids are those that ``sgoif.with_ids`` gives: ``dataset.ids`` where it has them, else positions in the dataset that
    everything was cut from. A dataset of files (torchvision's ``ImageFolder``, with ``samples`` and ``root``) gives the
    file, which is not cropped, turned or normalised as the example is, and knows paths below its root as ids too.
    """

    def __init__(self, dataset: Any) -> None:
        super().__init__(f"a dataset of {len(dataset):,}")
        self._dataset = dataset
        self._positions = Positions(ids_of(dataset))
        root = getattr(_innermost(dataset), "root", None)
        has_files = hasattr(_innermost(dataset), "samples") and isinstance(root, str | Path)
        self._folder = FolderPictures(Path(root)) if has_files and root is not None else None

    def read(self, ids: Sequence[Any]) -> Iterator[Any | None]:
        self._positions.find(ids)  # one pass over the ids of the dataset for all of them
        yield from super().read(ids)

    def value(self, id: Any) -> Any | None:
        position = self._positions.find([id])[str(plain_id(id))]
        if position is None and self._folder is not None:
            return self._folder.value(id)
        if position is None:
            raise SgoifError(f"{self.about} has no example {show_id(id)}.")
        file = _file_of(self._dataset, position)
        return file if file is not None else _example_in(self._dataset[position])

    def link(self, id: Any) -> str | None:
        position = self._positions.find([id])[str(plain_id(id))]
        if position is None:
            return None if self._folder is None else self._folder.link(id)
        file = _file_of(self._dataset, position)
        return None if file is None else file.absolute().as_uri()


class FunctionPictures(PicturePlace):
    """``function(id)``: a picture, its path, a text, a row as a dict; or None where there is none."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        name = getattr(function, "__name__", type(function).__name__)
        super().__init__("a function" if name == "<lambda>" else f"the function '{name}'")
        self._function = function

    def value(self, id: Any) -> Any | None:
        return _file_named(self._function(plain_id(id)))


class TablePictures(PicturePlace):
    """Rows of a table: an encoded picture, else a text, else the cells of the row by their columns.

    Ids are those of the table's id column, else row numbers. The column of the label is no cell of a row: what a row
    shows must not tell which label it was given.

    Args:
        table: its files, or a table in memory.
        names: columns that the user names.
        as_rows: whether rows are shown although there is a column of texts or pictures.
    """

    def __init__(
        self, table: Sequence[Path] | TableInMemory, names: ColumnNames | None = None, *, as_rows: bool = False
    ) -> None:
        reader = table if isinstance(table, TableInMemory) else TableFiles(table)
        files = reader.files
        folder = files[0].absolute().parent.name if files else ""
        named = f"the table '{files[0].name}'" if len(files) == 1 else f"{len(files):,} tables in '{folder}'"
        super().__init__(named if files else reader.about)
        source = TableSource.open(reader, names, is_labelled=False)
        self._source = replace(source, roles=_as_shown(source.roles, as_rows=as_rows))
        self._rows = Positions(self._source.ids)
        self._held = _HELD if self._source.kind == "picture" else _HELD_WRITTEN

    def value(self, id: Any) -> Any | None:
        return next(self._batch([id]))

    def read(self, ids: Sequence[Any]) -> Iterator[Any | None]:
        self._rows.find(ids)  # one pass over the ids of the table for all batches
        for start in range(0, len(ids), self._held):
            yield from self._batch(ids[start : start + self._held])

    def _batch(self, ids: Sequence[Any]) -> Iterator[Any | None]:
        rows = self._rows.find(ids)
        found = self._read_shown(sorted({row for row in rows.values() if row is not None}))
        for id in ids:
            row = rows[str(plain_id(id))]
            if row is None:
                self.count_missing(f"{self.about} has no row with the id {show_id(id)}.")
            yield None if row is None else found[row]

    def _read_shown(self, rows: list[int]) -> dict[int, Any]:
        """Read ascending rows; what cannot be read is None, and reading goes on after it."""
        found: dict[int, Any] = {}
        while len(found) < len(rows):
            try:
                for value in self._source.shown(np.array(rows[len(found) :], dtype=np.int64)):
                    found[rows[len(found)]] = self._present(value)
            except Exception as error:  # a damaged row group, a file that went away
                self.count_missing(error)
                found[rows[len(found)]] = None
        return found

    def _present(self, value: Any) -> Any | None:
        if isinstance(value, PictureError):
            self.count_missing(value)
            return None
        if value == b"" or (isinstance(value, Path) and not value.is_file()):
            self.count_missing(f"a row of {self.about} has no picture.")
            return None
        return value


def _innermost(dataset: Any) -> Any:
    while is_subset(dataset) or is_with_ids(dataset):
        dataset = dataset.dataset
    return dataset


def _file_of(dataset: Any, position: int) -> Path | None:
    """Find the file of an example, where the dataset is one of files as torchvision keeps them."""
    while is_subset(dataset) or is_with_ids(dataset):
        position = int(dataset.indices[position]) if is_subset(dataset) else position
        dataset = dataset.dataset
    samples = getattr(dataset, "samples", None)
    sample = samples[position] if isinstance(samples, list) and position < len(samples) else None
    if not isinstance(sample, tuple) or not isinstance(sample[0], str):
        return None
    path = Path(sample[0])
    return path if path.suffix.lower() in SUFFIXES and path.is_file() else None


def _as_shown(roles: Roles, *, as_rows: bool) -> Roles:
    """Columns of a table as they are shown, without that of the label."""
    others = roles.others
    if as_rows:
        others = (*(name for name in (roles.text,) if name is not None), *others)
    if not roles.labels:
        label = next((name for name in LABEL_COLUMNS if name in others), None)
        others = tuple(name for name in others if name != label)
    return replace(roles, kind="row" if as_rows else roles.kind, others=others)


def _example_in(item: Any) -> Any:
    if not isinstance(item, Mapping):
        return _file_named(item[0] if isinstance(item, tuple | list) else item)
    name = next((name for name in _KEYS if name in item), None)
    if name is not None:
        found = item[name]
        return _read_stored(found) if isinstance(found, Mapping) else _file_named(found)
    text = next((name for name in TEXT_COLUMNS if isinstance(item.get(name), str)), None)
    if text is not None:
        return item[text]
    label = next((name for name in LABEL_COLUMNS if name in item), None)
    cells = {str(name): cell for name, cell in item.items() if name != label and name not in ID_COLUMNS}
    cells = {name: cell for name, cell in cells.items() if cell is None or isinstance(cell, _PLAIN)}
    if not cells:
        keys, known = ", ".join(map(str, item)), ", ".join((*_KEYS, *TEXT_COLUMNS))
        raise SgoifError(f"the items have no picture, text or plain values: their keys are {keys}; looked for {known}.")
    return cells


def _file_named(value: Any) -> Any:
    """A text that names a picture on this machine is that file; any other text is one."""
    is_named = isinstance(value, str) and len(value) < _LONGEST_PATH and value.lower().endswith(SUFFIXES)
    return Path(value) if is_named and "\0" not in value and Path(value).is_file() else value


def _read_stored(item: Mapping[Any, Any]) -> Any:
    """``{bytes, path}`` of Hugging Face; the dataset is the user's own, and so are its paths."""
    found = item.get("bytes")
    path = item.get("path")
    return found if found is not None else Path(path) if isinstance(path, str) else b""
