"""Labelled examples: a folder of class folders, tar shards, or a table on disk or in memory.

A source knows ids, labels and class names at once, and reads pictures and texts when asked. What cannot be read is
passed over and counted, never fatal; what was assumed is written down in its notes.
"""

from __future__ import annotations

import glob
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SgoifError
from sgoif.pictures.decode import PictureError
from sgoif.sources.columns import SUFFIXES, ColumnNames, bytes_of, number_labels
from sgoif.sources.roles import Roles, choose_roles, read_ids, read_labels
from sgoif.sources.shards import ShardPictures, expand_braces, read_samples
from sgoif.sources.tables import TABLE_SUFFIXES, TableFiles, TableInMemory, TableReader, table_from

__all__ = ["FolderSource", "Kind", "ShardSource", "Source", "TableSource", "open_source", "table_files"]

Kind = Literal["picture", "text", "row"]
_EXPECTED = (
    "a folder of class folders; a .parquet, .arrow, .csv, .tsv or .jsonl file, or a folder of them; tar shards of "
    "WebDataset; a dataset saved by Hugging Face"
)


class Source(Protocol):
    """Labelled examples, known by their ids."""

    @property
    def kind(self) -> Kind:
        """What the examples are."""

    @property
    def ids(self) -> Sequence[str]:
        """One per example."""

    @property
    def labels(self) -> NDArray[np.int64]:
        """Classes, ``[N]``; -1 where there is none."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """By class."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed, a sentence each."""

    def encoded(self, positions: NDArray[np.int64]) -> Iterator[bytes | Path | PictureError]:
        """Give the files of some pictures, in the order asked for, or why there is none; ascending is fastest."""

    def texts(self, positions: NDArray[np.int64]) -> Iterator[str]:
        """Give some texts, in the order asked for, empty where there is none; ascending is fastest."""


@dataclass(frozen=True, slots=True)
class FolderSource:
    """``root/class/…/picture``; the id is the path below the root."""

    root: Path
    ids: Sequence[str]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    notes: tuple[str, ...] = ()
    kind: ClassVar[Kind] = "picture"

    @classmethod
    def open(cls, root: Path) -> FolderSource:
        """List the pictures of every class folder.

        Raises:
            SgoifError: There are fewer than two class folders with pictures.
        """
        found = sorted(path for path in root.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
        named = [path.relative_to(root) for path in found if not path.name.startswith(".")]
        inside = [path for path in named if len(path.parts) > 1]
        names = tuple(sorted({path.parts[0] for path in inside}))
        if len(names) < 2:
            raise SgoifError(
                f"'{root}' holds pictures in {len(names)} class folders; expected one folder per class, "
                "at least two: root/cat/1.jpg, root/dog/2.jpg. For a table pass the file."
            )
        place = {name: number for number, name in enumerate(names)}
        labels = np.array([place[path.parts[0]] for path in inside], dtype=np.int64)
        outside = len(named) - len(inside)
        notes = (f"{outside:,} pictures that lie in no class folder were left out.",) if outside else ()
        return cls(root, [path.as_posix() for path in inside], labels, names, notes)

    def encoded(self, positions: NDArray[np.int64]) -> Iterator[bytes | Path]:
        return (self.root / self.ids[int(i)] for i in positions)

    def texts(self, positions: NDArray[np.int64]) -> Iterator[str]:
        raise SgoifError(f"'{self.root}' is a folder of pictures; it has no texts.")


@dataclass(frozen=True, slots=True)
class ShardSource:
    """Tar shards of WebDataset, ``key.jpg`` beside ``key.cls`` or ``key.json``; ids are ``shard/key``."""

    pictures: ShardPictures
    ids: Sequence[str]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    notes: tuple[str, ...] = ()
    kind: ClassVar[Kind] = "picture"

    @classmethod
    def open(cls, shards: Sequence[str]) -> ShardSource:
        """Read the labels of all shards; pictures stay where they are."""
        ids, raw = [], []
        for shard in shards:
            try:
                with open(shard, "rb") as file:
                    for sample in read_samples(file, has_pictures=False):
                        ids.append(f"{Path(shard).name.removesuffix('.tar')}/{sample.key}")
                        raw.append(sample.label)
            except (OSError, EOFError, ValueError, tarfile.TarError) as error:
                raise SgoifError(f"the shard '{shard}' cannot be read: {error}") from error
        labels, names = number_labels(raw, ())
        return cls(ShardPictures(shards, lambda shard: open(shard, "rb")), ids, labels, names)

    def encoded(self, positions: NDArray[np.int64]) -> Iterator[bytes | Path]:
        for value in self.pictures.read([self.ids[int(i)] for i in positions]):
            yield b"" if value is None else value

    def texts(self, positions: NDArray[np.int64]) -> Iterator[str]:
        raise SgoifError("tar shards are read as pictures; they have no texts.")


@dataclass(frozen=True, slots=True)
class TableSource:
    """Rows of a table, read a block at a time."""

    reader: TableReader
    roles: Roles
    ids: Sequence[str]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    votes: NDArray[np.int64] | None = None  # labels of several annotators, [N, A]; -1 where there is none
    values: NDArray[np.float64] | None = None  # labels of a regression, [N]
    notes: tuple[str, ...] = ()

    @classmethod
    def open(
        cls,
        reader: TableReader,
        names: ColumnNames | None = None,
        *,
        is_labelled: bool = True,
        has_features: bool = False,
        is_regression: bool = False,
    ) -> TableSource:
        """Find the columns and read the labels.

        Args:
            reader: of the table.
            names: columns that the user names; the others are found by their usual names.
            is_labelled: whether labels are needed; without, all of them are -1.
            has_features: whether embeddings come from elsewhere, so that a table of labels alone will do.
            is_regression: whether labels are values.

        Raises:
            SgoifError: The table cannot be read, or a column is missing; the message names the columns there are.
        """
        names = names or ColumnNames()
        roles = choose_roles(reader, names, is_labelled=is_labelled, has_features=has_features)
        ids, notes = read_ids(reader, roles, is_named=names.id is not None)
        found = cls(reader, roles, ids, np.full(len(ids), -1), (), notes=(*roles.notes, *notes))
        if not is_labelled:
            return found
        return replace(found, **read_labels(reader, roles, is_regression=is_regression))

    @property
    def kind(self) -> Kind:
        return self.roles.kind

    @property
    def files(self) -> tuple[Path, ...]:
        """Of the table; none where it is in memory."""
        return self.reader.files

    def encoded(self, positions: NDArray[np.int64]) -> Iterator[bytes | Path | PictureError]:
        if self.roles.image is None:
            raise SgoifError(f"{self.reader.about} has no column with a picture; name it with --image COLUMN.")
        folder = self.files[0].parent if self.files else None
        return (bytes_of(value, folder) for value in self.cells(self.roles.image, positions))

    def texts(self, positions: NDArray[np.int64]) -> Iterator[str]:
        if self.roles.text is None:
            raise SgoifError(f"{self.reader.about} has no column with a text; name it with --text COLUMN.")
        return ("" if value is None else str(value) for value in self.cells(self.roles.text, positions))

    def shown(self, positions: NDArray[np.int64]) -> Iterator[Any]:
        """Give what a person looks at: pictures, texts, or rows as dictionaries."""
        if self.kind == "picture":
            return self.encoded(positions)
        return self.texts(positions) if self.kind == "text" else self.rows(self.roles.others, positions)

    def cells(self, column: str, positions: NDArray[np.int64]) -> Iterator[Any]:
        """Give the values of a column at some rows, in the order asked for."""
        return (row[column] for row in self.rows([column], positions))

    def rows(self, columns: Sequence[str], positions: NDArray[np.int64]) -> Iterator[dict[str, Any]]:
        """Give some columns of some rows, in the order asked for."""
        positions = np.asarray(positions, dtype=np.int64)
        if (np.diff(positions) < 0).any():
            order = np.argsort(positions, kind="stable")
            found = dict(zip(positions[order].tolist(), self.rows(columns, positions[order])))
            yield from (found[i] for i in positions.tolist())
            return

        def wanted(start: int, stop: int) -> bool:
            first, last = np.searchsorted(positions, [start, stop])
            return bool(first < last)

        for start, block in self.reader.blocks(columns, wanted):
            first, last = np.searchsorted(positions, [start, start + len(block)])
            yield from block.take(positions[first:last] - start).to_pylist()


def open_source(
    data: Any, names: ColumnNames | None = None, *, has_features: bool = False, is_regression: bool = False
) -> FolderSource | ShardSource | TableSource:
    """Open labelled examples.

    Args:
        data: a folder of class folders; a Parquet, Arrow, CSV or JSON-lines file, or a folder of them; tar shards, as
            a file, a folder or a pattern; or a table in memory: a DataFrame, a ``datasets.Dataset``, an Arrow table.
        names: columns of a table.
        has_features: whether embeddings come from elsewhere, so that a table of labels alone will do.
        is_regression: whether labels are values.

    Raises:
        SgoifError: It does not exist, or is nothing of the kind.
    """
    options = {"has_features": has_features, "is_regression": is_regression}
    if not isinstance(data, str | Path):
        table = data if isinstance(data, TableInMemory) else table_from(data)
        if table is None:
            raise SgoifError(f"a {type(data).__name__} cannot be scanned; pass {_EXPECTED}; or a DataFrame.")
        return TableSource.open(table, names, **options)
    place = Path(data).expanduser()
    shards = _find_shards(str(data), place)
    if shards:
        _refuse_columns(names, is_regression, "tar shards")
        return ShardSource.open(shards)
    if not place.exists():
        raise SgoifError(f"'{place}' does not exist; pass {_EXPECTED}.")
    if place.is_file():
        if place.suffix.lower() not in TABLE_SUFFIXES:
            raise SgoifError(
                f"'{place}' is of no kind that is known here; pass {_EXPECTED}. Others convert, for example by "
                "pandas.DataFrame.to_parquet."
            )
        return TableSource.open(TableFiles([place]), names, **options)
    files = table_files(place)
    if not files and not any(path.is_dir() and not path.name.startswith(".") for path in place.iterdir()):
        files = sorted(path for path in place.iterdir() if path.suffix in TABLE_SUFFIXES)
    if files:
        return TableSource.open(TableFiles(files), names, **options)
    _refuse_columns(names, is_regression, "a folder of class folders")
    return FolderSource.open(place)


def table_files(folder: Path) -> list[Path]:
    """List a folder's Parquet or Arrow files, of the training split where splits are named; or none."""
    for pattern in ("*.parquet", "data/*.parquet", "*.arrow", "train/*.parquet", "train/*.arrow"):
        files = sorted(folder.glob(pattern))
        train = [path for path in files if path.name.startswith("train")]
        if files:
            return train or files
    return []


def _find_shards(text: str, place: Path) -> list[str]:
    """Tar shards by name, by pattern, or in a folder that holds nothing else."""
    if place.is_dir():
        inside = [path for path in sorted(place.iterdir()) if not path.name.startswith(".")]
        return [str(path) for path in inside] if inside and all(path.suffix == ".tar" for path in inside) else []
    if not text.endswith(".tar"):
        return []
    found = [name for pattern in expand_braces(text) for name in sorted(glob.glob(pattern))]
    return found


def _refuse_columns(names: ColumnNames | None, is_regression: bool, what: str) -> None:
    if is_regression or (names is not None and names != ColumnNames()):
        raise SgoifError(f"{what} has no columns; columns and tasks are named for tables.")
