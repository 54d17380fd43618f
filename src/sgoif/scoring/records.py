"""The records of a piece, one after another: an id, a label as the data has it, a picture that is still encoded."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from sgoif.errors import SgoifError
from sgoif.files.locations import place_of
from sgoif.pictures.decode import PictureError
from sgoif.scoring.pieces import Piece
from sgoif.sources.columns import ID_COLUMNS, IMAGE_COLUMNS, LABEL_COLUMNS, bytes_of, find_column
from sgoif.sources.shards import read_samples
from sgoif.store.parts import UNREACHABLE

__all__ = ["Record", "class_of", "read_records"]

_ROWS_AT_ONCE = 256  # pictures of a Parquet file that are held encoded
_FILES_AT_ONCE = 32  # hides the latency of an object store


class Record(NamedTuple):
    """One example, unread."""

    id: int | str
    label: Any  # a number, a name, or None
    picture: bytes | Path | PictureError | None  # an error where the data names a file that must not be read


def read_records(piece: Piece) -> Iterator[Record]:
    """Go through a piece in its order; raises where it cannot be read on."""
    readers = {"parquet": _rows, "tar": _samples, "files": _files}
    return readers[piece.kind](piece)


def class_of(label: Any, class_names: Sequence[str], num_classes: int) -> int:
    """Find the class that a label means: by its name, else by its number.

    Raises:
        SgoifError: It is none of the classes.

    >>> class_of("dog", ["cat", "dog"], 2), class_of("0", [], 2), class_of(1, ["cat", "dog"], 2)
    (1, 0, 1)
    """
    if isinstance(label, str) and label in class_names:
        return list(class_names).index(label)
    text = str(label).strip()
    if isinstance(label, bool | float) or not (text.isascii() and text.isdecimal() and int(text) < num_classes):
        raise SgoifError(
            "it has no label" if label is None else f"its label {str(label)[:60]!r} is none of the classes"
        )
    return int(text)


def _rows(piece: Piece) -> Iterator[Record]:
    import pyarrow.parquet as pq

    place = place_of(piece.address)
    with pq.ParquetFile(place.root if place.is_local else place.fs.open(place.root, "rb")) as file:
        names = file.schema_arrow.names
        image = find_column(names, IMAGE_COLUMNS, "an encoded picture", piece.address)
        label = find_column(names, LABEL_COLUMNS, "a label", piece.address)
        key = next((name for name in ID_COLUMNS if name in names and name != image), None)
        wanted = [name for name in (image, label, key) if name is not None]
        folder = Path(place.root).parent if place.is_local else None
        stem, number = Path(place.root).stem, 0
        for batch in file.iter_batches(_ROWS_AT_ONCE, columns=wanted, use_threads=False):
            columns = [batch[name].to_pylist() for name in wanted]
            for row in zip(*columns):
                own = row[2] if key is not None else f"{stem}/{number}"
                yield Record(own, row[1], bytes_of(row[0], folder) or None)
                number += 1


def _samples(piece: Piece) -> Iterator[Record]:
    place = place_of(piece.address)
    shard = os.path.basename(place.root).removesuffix(".tar")
    with place.fs.open(place.root, "rb") as file:
        for sample in read_samples(file):
            yield Record(f"{shard}/{sample.key}", sample.label, sample.picture)


def _files(piece: Piece) -> Iterator[Record]:
    place, left = place_of(piece.address), iter(piece.files)
    while names := list(islice(left, _FILES_AT_ONCE)):
        if place.is_local:
            pictures: list[Any] = [Path(place.full(name)) for name in names]
        else:
            found = place.fs.cat_ranges([place.full(name) for name in names], None, None, on_error="return")
            for value in found:
                if isinstance(value, UNREACHABLE):
                    raise value  # the store, not the file: the piece is tried again
            pictures = [None if isinstance(value, BaseException) else bytes(value) for value in found]
        for name, picture in zip(names, pictures, strict=True):
            yield Record(name, name.partition("/")[0], picture)
