"""Labels that a person has checked, from a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sgoif.errors import SgoifError
from sgoif.files.tables import read_csv_rows

__all__ = ["read_verified"]


def read_verified(path: str | Path, ids: Sequence[Any], class_names: Sequence[str]) -> dict[int, int]:
    """Read verified labels, ``id,label`` with a header: positions to classes. Ids that are not here are passed over.

    Raises:
        SgoifError: The file has no such columns, or names a class that there is not; the message has the line.
    """
    place = {str(value): number for number, value in enumerate(ids)}
    classes = {name: number for number, name in enumerate(class_names)}
    found: dict[int, int] = {}
    for line, row in read_csv_rows(path, ["id", "label"]):
        label = row["label"].strip()
        if not label or row["id"] not in place:
            continue
        if label in classes:
            found[place[row["id"]]] = classes[label]
        elif label.isdecimal() and int(label) < len(class_names):
            found[place[row["id"]]] = int(label)
        else:
            raise SgoifError(f"line {line} of '{path}' names the class {label!r}; there are {list(class_names)}.")
    return found
