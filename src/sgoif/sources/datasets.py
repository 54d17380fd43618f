"""Pictures of a dataset or of tables, by position or by their ids; and of a function from an id to a picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sgoif.errors import SgoifError
from sgoif.inputs.ids import ids_of, is_subset, is_with_ids
from sgoif.pictures.decode import PictureError
from sgoif.sources.columns import IMAGE_COLUMNS, SUFFIXES, ColumnNames
from sgoif.sources.folders import FolderPictures
from sgoif.sources.labelled import TableSource
from sgoif.sources.reading import PicturePlace, Positions, plain_id, show_id
from sgoif.sources.tables import TableFiles

__all__ = ["DatasetPictures", "FunctionPictures", "TablePictures"]

_KEYS = (*IMAGE_COLUMNS, "pixel_values")
_HELD = 256  # pictures held encoded at once, so that those of one row group are read together


class DatasetPictures(PicturePlace):
    """``dataset[i]``: a picture, a tuple that starts with one, or a dict with one.

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
        return file if file is not None else _picture_in(self._dataset[position])

    def link(self, id: Any) -> str | None:
        position = self._positions.find([id])[str(plain_id(id))]
        if position is None:
            return None if self._folder is None else self._folder.link(id)
        file = _file_of(self._dataset, position)
        return None if file is None else file.absolute().as_uri()


class FunctionPictures(PicturePlace):
    """``function(id)``: anything that can be displayed, or None where there is no picture."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__(f"the function '{getattr(function, '__name__', type(function).__name__)}'")
        self._function = function

    def value(self, id: Any) -> Any | None:
        return self._function(plain_id(id))


class TablePictures(PicturePlace):
    """Rows of a table: an encoded picture, else a text, else the cells of the row by their columns.

    Ids are those of the table's id column, else row numbers.

    Args:
        files: of the table.
        names: columns that the user names.
    """

    def __init__(self, files: Sequence[Path], names: ColumnNames | None = None) -> None:
        folder = files[0].absolute().parent.name
        super().__init__(f"the table '{files[0].name}'" if len(files) == 1 else f"{len(files):,} tables in '{folder}'")
        self._source = TableSource.open(TableFiles(files), names, is_labelled=False)
        self._rows = Positions(self._source.ids)

    def value(self, id: Any) -> Any | None:
        return next(self._batch([id]))

    def read(self, ids: Sequence[Any]) -> Iterator[Any | None]:
        self._rows.find(ids)  # one pass over the ids of the table for all batches
        for start in range(0, len(ids), _HELD):
            yield from self._batch(ids[start : start + _HELD])

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


def _picture_in(item: Any) -> Any:
    if isinstance(item, Mapping):
        name = next((name for name in _KEYS if name in item), None)
        if name is None:
            keys = ", ".join(map(str, item))
            raise SgoifError(f"the items have no picture: their keys are {keys}; looked for {', '.join(_KEYS)}.")
        item = item[name]
        return _read_stored(item) if isinstance(item, Mapping) else item
    return item[0] if isinstance(item, tuple | list) else item


def _read_stored(item: Mapping[Any, Any]) -> Any:
    """``{bytes, path}`` of Hugging Face; the dataset is the user's own, and so are its paths."""
    found = item.get("bytes")
    path = item.get("path")
    return found if found is not None else Path(path) if isinstance(path, str) else b""
