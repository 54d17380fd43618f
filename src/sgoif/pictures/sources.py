"""Where labelled pictures come from: a folder of class folders, a table, or a dataset saved by Hugging Face.

A source knows ids, labels and class names at once, and reads pictures when asked, in order or one by one. What cannot
be read is passed over and counted, never fatal.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SgoifError
from sgoif.files.tables import CSV_SUFFIXES, read_csv
from sgoif.pictures.decode import PictureError

__all__ = [
    "ID_COLUMNS",
    "IMAGE_COLUMNS",
    "LABEL_COLUMNS",
    "SUFFIXES",
    "FolderSource",
    "Source",
    "TableSource",
    "bytes_of",
    "find_column",
    "open_source",
    "table_files",
]

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jfif", ".avif")
IMAGE_COLUMNS = ("image", "img", "picture", "jpg", "jpeg", "png", "webp", "bytes")
LABEL_COLUMNS = ("label", "labels", "class", "target", "fine_label", "category")
ID_COLUMNS = ("id", "image_id", "key", "filename", "file_name", "path")


class Source(Protocol):
    """Labelled pictures, known by their ids."""

    @property
    def ids(self) -> Sequence[str]:
        """One per picture."""

    @property
    def labels(self) -> NDArray[np.int64]:
        """Classes, ``[N]``; -1 where there is none."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """By class."""

    def encoded(self, positions: NDArray[np.int64]) -> Iterator[bytes | Path | PictureError]:
        """Give the files of some pictures, in the order asked for, or why there is none; ascending is fastest."""


@dataclass(frozen=True, slots=True)
class FolderSource:
    """``root/class/…/picture``; the id is the path below the root."""

    root: Path
    ids: Sequence[str]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    has_pictures: ClassVar[bool] = True

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
                "at least two: root/cat/1.jpg, root/dog/2.jpg. For Parquet pass the file."
            )
        place = {name: number for number, name in enumerate(names)}
        labels = np.array([place[path.parts[0]] for path in inside], dtype=np.int64)
        return cls(root, [path.as_posix() for path in inside], labels, names)

    def encoded(self, positions: NDArray[np.int64]) -> Iterator[bytes | Path]:
        return (self.root / self.ids[int(i)] for i in positions)


@dataclass(frozen=True, slots=True)
class TableSource:
    """Rows with an encoded picture and a label, in Parquet files or Arrow streams, read one row group at a time."""

    files: tuple[Path, ...]
    sizes: tuple[tuple[int, ...], ...]  # rows of each group of each file
    image_column: str | None  # none where embeddings came with the table
    ids: Sequence[str]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]

    @classmethod
    def open(
        cls, files: Sequence[Path], *, is_labelled: bool = True, has_pictures: bool = True, hint: str = ""
    ) -> TableSource:
        """Find the columns and read the labels.

        Args:
            files: Parquet or Arrow, all with the same columns.
            is_labelled: whether labels are needed; without, all of them are -1.
            has_pictures: whether pictures are needed.
            hint: what to do where a table has none, for the message.

        Raises:
            SgoifError: No file can be read, or a column is missing; the message names the columns there are.
        """
        tables = [_groups(path) for path in files]
        schema = next(iter(tables[0])).schema
        image = next((name for name in IMAGE_COLUMNS if name in schema.names), None)
        if has_pictures:
            image = find_column(schema.names, IMAGE_COLUMNS, "an encoded picture", files[0], hint)
        label = find_column(schema.names, LABEL_COLUMNS, "a label", files[0]) if is_labelled else None
        key = next((name for name in ID_COLUMNS if name in schema.names and name != image), None)
        raw: list[Any] = []
        ids: list[str] = []
        sizes: list[tuple[int, ...]] = []
        for path in files:
            rows = []
            for group in _groups(path, [name for name in (label, key) if name is not None]):
                raw.extend(group[label].to_pylist() if label is not None else [None] * len(group))
                start = len(ids)
                own = group[key].to_pylist() if key is not None else range(start, start + len(group))
                ids.extend(str(value) for value in own)
                rows.append(len(group))
            sizes.append(tuple(rows))
        if len(set(ids)) < len(ids):
            ids = [str(i) for i in range(len(raw))]  # a column that only looked like an id
        labels, names = _number_labels(raw, _read_class_names(files[0], schema, label) if label is not None else ())
        return cls(tuple(files), tuple(sizes), image, ids, labels, names)

    @property
    def has_pictures(self) -> bool:
        """Whether there are pictures to show."""
        return self.image_column is not None

    def encoded(self, positions: NDArray[np.int64]) -> Iterator[bytes | Path | PictureError]:
        if self.image_column is None:
            raise SgoifError(f"'{self.files[0]}' has no column with an encoded picture.")
        starts = np.cumsum([0, *(rows for file in self.sizes for rows in file)])
        places = [(path, g) for path, file in zip(self.files, self.sizes, strict=True) for g in range(len(file))]
        opened, held = -1, None
        for i in positions:
            group = int(np.searchsorted(starts, i, side="right")) - 1
            if group != opened:
                path, number = places[group]
                held, opened = _group(path, number, self.image_column), group
            assert held is not None
            yield bytes_of(held[int(i - starts[group])].as_py(), self.files[0].parent)


def open_source(path: str | Path, *, has_pictures: bool = True, hint: str = "") -> FolderSource | TableSource:
    """Open a folder of class folders, a Parquet, Arrow or CSV file, or a folder of Parquet or Arrow files.

    Args:
        path: of the folder or file.
        has_pictures: whether a table needs a column of pictures: not where its embeddings are given.
        hint: what to do where it needs one and has none, for the message.

    Raises:
        SgoifError: The path does not exist, or holds nothing of the kind.
    """
    place = Path(path)
    if not place.exists():
        raise SgoifError(f"'{place}' does not exist; pass a folder of class folders or a Parquet file with pictures.")
    if place.is_file():
        if place.suffix not in (".parquet", ".arrow", *CSV_SUFFIXES):
            raise SgoifError(
                f"'{place}' is neither a folder nor a .parquet, .arrow, .csv or .tsv file; convert it, for example by "
                "pandas.DataFrame.to_parquet."
            )
        return TableSource.open([place], has_pictures=has_pictures, hint=hint)
    files = table_files(place)
    return TableSource.open(files, has_pictures=has_pictures, hint=hint) if files else FolderSource.open(place)


def table_files(folder: Path) -> list[Path]:
    """List a folder's Parquet or Arrow files, of the training split where splits are named; or none."""
    for pattern in ("*.parquet", "data/*.parquet", "*.arrow", "train/*.parquet", "train/*.arrow"):
        files = sorted(folder.glob(pattern))
        train = [path for path in files if path.name.startswith("train")]
        if files:
            return train or files
    return []


def _groups(path: Path, columns: list[str] | None = None) -> Iterator[Any]:
    """Go through a file's row groups as Arrow tables."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if path.suffix == ".parquet":
            file = pq.ParquetFile(path)
            if file.num_row_groups == 0:
                yield file.schema_arrow.empty_table()
            for number in range(file.num_row_groups):
                yield file.read_row_group(number, columns=columns)
            return
        if path.suffix in CSV_SUFFIXES:
            table = read_csv(path)
            yield table if columns is None else table.select(columns)
            return
        with pa.memory_map(str(path)) as mapped, pa.ipc.open_stream(mapped) as stream:
            for batch in stream:
                table = pa.Table.from_batches([batch])
                yield table if columns is None else table.select(columns)
    except (pa.ArrowException, OSError) as error:
        raise SgoifError(f"'{path}' cannot be read as {path.suffix[1:]}: {error}") from error


def _group(path: Path, number: int, column: str) -> Any:
    import pyarrow.parquet as pq

    if path.suffix == ".parquet":
        return pq.ParquetFile(path).read_row_group(number, columns=[column])[column]
    for place, group in enumerate(_groups(path, [column])):
        if place == number:
            return group[column]
    raise SgoifError(f"'{path}' has no group {number}; it changed while it was read.")


def bytes_of(value: Any, folder: Path | None) -> bytes | Path | PictureError:
    """A picture as Hugging Face stores it, ``{bytes, path}``, or plain bytes, or a path; empty where there is none.

    A table may come from somebody else: paths in it are read only below the folder that it lies in, links resolved,
    and addresses of the web never. For others there is the error that decoding will raise.

    Args:
        value: a cell of the table.
        folder: where the table lies; None where that is not on this machine, and then no path is read.
    """
    if isinstance(value, dict):
        inner = value.get("bytes")
        value = inner if inner is not None else value.get("path")
    if isinstance(value, bytes):
        return value
    return _file_below(value, folder) if isinstance(value, str) else b""


def _file_below(text: str, folder: Path | None) -> Path | PictureError:
    if "://" in text:
        return PictureError(f"the table names the address {text[:80]!r}; addresses in tables are not opened")
    if folder is None:
        return PictureError(f"the table names the file {text[:80]!r} and is not on this machine; put bytes into it")
    root, path = os.path.realpath(folder), folder / text
    if "\0" in text or not os.path.realpath(path).startswith(root.rstrip(os.sep) + os.sep):
        return PictureError(
            f"the table names the file {text[:80]!r}, which is outside the table's folder; put the table into the "
            "folder of the pictures, or the bytes of the pictures into the table"
        )
    return path


def find_column(names: Sequence[str], known: Sequence[str], what: str, path: str | Path, hint: str = "") -> str:
    """Name the first column that is one of the known ones.

    Raises:
        SgoifError: None is; the message names the columns there are.
    """
    found = next((name for name in known if name in names), None)
    if found is None:
        raise SgoifError(
            f"'{path}' has no column with {what}: it has {', '.join(names)}; looked for {', '.join(known)}."
            f"{hint and ' '}{hint}"
        )
    return found


def _read_class_names(path: Path, schema: Any, label: str) -> tuple[str, ...]:
    """Class names as Hugging Face declares them: in Parquet metadata, or in ``dataset_info.json`` beside the file."""
    features: Any = {}
    metadata = (schema.metadata or {}).get(b"huggingface")
    declared = path.parent / "dataset_info.json"
    try:
        if metadata is not None:
            features = json.loads(metadata)["info"]["features"]
        elif declared.is_file():
            features = json.loads(declared.read_text())["features"]
        return tuple(str(name) for name in features.get(label, {}).get("names", ()))
    except (ValueError, KeyError, AttributeError, TypeError):
        return ()


def _number_labels(raw: list[Any], names: tuple[str, ...]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Labels as numbers from 0; -1 for examples without one.

    Whole numbers are classes as they stand, unless they run far beyond what there are examples of: such numbers are
    names (of synsets, of products), and the classes are those that occur.
    """
    whole = [value for value in raw if value is not None]
    if all(isinstance(value, int) for value in whole) and max(whole, default=0) <= max(len(raw), len(names)):
        labels = np.array([-1 if value is None or value < 0 else value for value in raw], dtype=np.int64)
        count = max(int(labels.max(initial=-1)) + 1, len(names))
        return labels, tuple(names[i] if i < len(names) else str(i) for i in range(count))
    texts = [None if value is None or (isinstance(value, int) and value < 0) else str(value) for value in raw]
    found = tuple(sorted({text for text in texts if text is not None}))
    place = {name: number for number, name in enumerate(found)}
    return np.array([-1 if text is None else place[text] for text in texts], dtype=np.int64), found
