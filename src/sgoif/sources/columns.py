"""Columns of a table: which of them holds the label, the text, the picture or the id; and labels as numbers."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SgoifError
from sgoif.pictures.decode import PictureError

__all__ = [
    "ID_COLUMNS",
    "IMAGE_COLUMNS",
    "LABEL_COLUMNS",
    "SUFFIXES",
    "TEXT_COLUMNS",
    "ColumnNames",
    "bytes_of",
    "find_column",
    "number_labels",
    "read_class_names",
]

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jfif", ".avif")
IMAGE_COLUMNS = ("image", "img", "picture", "jpg", "jpeg", "png", "webp", "bytes")
TEXT_COLUMNS = ("text", "sentence", "utterance", "content", "review", "comment", "question", "query", "document")
LABEL_COLUMNS = ("label", "labels", "class", "target", "fine_label", "category", "intent")
ID_COLUMNS = ("id", "image_id", "key", "filename", "file_name", "path")
_NAMED = 20  # columns in a message
_NO_NUMBER = ("", "na", "n/a", "nan", "null", "none")  # in a column whose other cells are numbers


@dataclass(frozen=True, slots=True)
class ColumnNames:
    """Columns as the user names them; None where the column is found by its name."""

    label: str | Sequence[str] | None = None  # several: one per annotator
    text: str | None = None
    image: str | None = None
    id: str | None = None
    group: str | None = None
    split: str | None = None

    def check(self, present: Sequence[str], where: str) -> None:
        """Raise where a column that the user names is not there.

        Raises:
            SgoifError: The message names the columns there are.
        """
        for role in fields(self):
            named = getattr(self, role.name)
            for name in () if named is None else (named,) if isinstance(named, str) else named:
                if name not in present:
                    raise SgoifError(f"{where} has no column {name!r} ({role.name}): it has {_some(present)}.")

    @property
    def labels(self) -> tuple[str, ...]:
        """Columns of labels; none where they are left to be found."""
        return () if self.label is None else (self.label,) if isinstance(self.label, str) else tuple(self.label)


def find_column(names: Sequence[str], known: Sequence[str], what: str, where: str | Path, hint: str = "") -> str:
    """Name the first column that is one of the known ones.

    Raises:
        SgoifError: None is; the message names the columns there are.
    """
    found = next((name for name in known if name in names), None)
    if found is None:
        raise SgoifError(
            f"'{where}' has no column with {what}: it has {_some(names)}; looked for {', '.join(known)}."
            f"{hint and ' '}{hint}"
        )
    return found


def _some(names: Sequence[str]) -> str:
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def read_class_names(path: Path | None, schema: Any, label: str) -> tuple[str, ...]:
    """Class names as Hugging Face declares them: in the schema, or in ``dataset_info.json`` beside the file."""
    features: Any = {}
    metadata = (schema.metadata or {}).get(b"huggingface")
    declared = None if path is None else path.parent / "dataset_info.json"
    try:
        if metadata is not None:
            features = json.loads(metadata)["info"]["features"]
        elif declared is not None and declared.is_file():
            features = json.loads(declared.read_text())["features"]
        return tuple(str(name) for name in features.get(label, {}).get("names", ()))
    except (ValueError, KeyError, AttributeError, TypeError):
        return ()


def number_labels(
    raw: Sequence[Any], names: tuple[str, ...], column: str = "label"
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Labels as numbers from 0; -1 for examples without one.

    Whole numbers are classes as they stand, unless they run far beyond what there are examples of: such numbers are
    names (of synsets, of products), and the classes are those that occur.

    Raises:
        SgoifError: The labels are fractions, which are values and not classes.
    """
    raw = _as_whole_numbers(raw)
    whole = [value for value in raw if value is not None]
    if any(isinstance(value, float) and not value.is_integer() for value in whole):
        count = len(set(whole))
        raise SgoifError(
            f"the column {column!r} holds fractions ({count:,} different ones), which are no classes. For values pass "
            "--task regression (task='regression'); for classes write them as names."
        )
    raw = [int(value) if isinstance(value, float) else value for value in raw]
    whole = [value for value in raw if value is not None]
    if all(isinstance(value, int) for value in whole) and max(whole, default=0) <= max(len(raw), len(names)):
        labels = np.array([-1 if value is None or value < 0 else int(value) for value in raw], dtype=np.int64)
        count = max(int(labels.max(initial=-1)) + 1, len(names))
        return labels, tuple(names[i] if i < len(names) else str(i) for i in range(count))
    texts = [None if value is None or (isinstance(value, int) and value < 0) else str(value) for value in raw]
    found = tuple(sorted({text for text in texts if text is not None}))
    place = {name: number for number, name in enumerate(found)}
    return np.array([-1 if text is None else place[text] for text in texts], dtype=np.int64), found


def _as_whole_numbers(raw: Sequence[Any]) -> list[Any]:
    """Texts of whole numbers as numbers, where all of them are; NaN and empty texts as nothing."""
    found = [None if value is None or value != value or value == "" else value for value in raw]
    if not any(isinstance(value, str) for value in found):
        return found
    texts = [None if isinstance(value, str) and value.strip().lower() in _NO_NUMBER else value for value in found]
    try:
        numbers = [value if value is None else int(value) for value in texts]
    except (ValueError, TypeError):
        return found
    is_plain = all(value is None or str(number) == str(value).strip() for number, value in zip(numbers, texts))
    return numbers if is_plain else found  # 007 is a name


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
