"""Pictures in the rows of Parquet or Arrow files, by the ids that a scan of them has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sgoif.pictures.decode import PictureError
from sgoif.pictures.reading import PicturePlace, Positions, plain_id, shown_id
from sgoif.pictures.sources import TableSource

__all__ = ["TablePictures"]

_HELD = 256  # pictures held encoded at once, so that those of one row group are read together


class TablePictures(PicturePlace):
    """Rows with an encoded picture; ids are those of the table's id column, else row numbers."""

    def __init__(self, files: Sequence[Path]) -> None:
        folder = files[0].absolute().parent.name
        super().__init__(f"the table '{files[0].name}'" if len(files) == 1 else f"{len(files):,} tables in '{folder}'")
        self._source = TableSource.open(files, is_labelled=False)
        self._rows = Positions(self._source.ids)

    def value(self, id: Any) -> bytes | Path | None:
        return next(self._batch([id]))

    def read(self, ids: Sequence[Any]) -> Iterator[Any | None]:
        self._rows.find(ids)  # one pass over the ids of the table for all batches
        for start in range(0, len(ids), _HELD):
            yield from self._batch(ids[start : start + _HELD])

    def _batch(self, ids: Sequence[Any]) -> Iterator[bytes | Path | None]:
        rows = self._rows.find(ids)
        found = self._encoded(sorted({row for row in rows.values() if row is not None}))
        for id in ids:
            row = rows[str(plain_id(id))]
            if row is None:
                self.missed(f"{self.about} has no row with the id {shown_id(id)}.")
            yield None if row is None else found[row]

    def _encoded(self, rows: list[int]) -> dict[int, bytes | Path | None]:
        """Read ascending rows; what cannot be read is None, and reading goes on after it."""
        found: dict[int, bytes | Path | None] = {}
        while len(found) < len(rows):
            try:
                for value in self._source.encoded(np.array(rows[len(found) :], dtype=np.int64)):
                    found[rows[len(found)]] = self._present(value)
            except Exception as error:  # a damaged row group, a file that went away
                self.missed(error)
                found[rows[len(found)]] = None
        return found

    def _present(self, value: bytes | Path | PictureError) -> bytes | Path | None:
        if isinstance(value, PictureError):
            self.missed(value)
            return None
        if value == b"" or (isinstance(value, Path) and not value.is_file()):
            self.missed(f"a row of {self.about} has no picture.")
            return None
        return value
