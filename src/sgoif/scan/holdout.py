"""Which examples a scan holds out, and which of them a person has verified."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SgoifError
from sgoif.evidence import hash_ids
from sgoif.files.tables import read_csv_rows

__all__ = ["choose_holdout", "read_verified"]

_MIN_PER_CLASS = 20
_MOST = 20_000  # in all: each is scored under every class
_MIN_VERIFIED = 5  # per class, for verified labels to be the hold-out


def choose_holdout(ids: NDArray[Any], labels: NDArray[np.int64], num_classes: int) -> NDArray[np.bool_]:
    """Hold out the examples of each class with the smallest hashes: the same in every run, whatever their order.

    In all ``min(10%, max(2%, 50 per class), 20,000)``, at least 20 of each class where it has twice as many.
    """
    count = max(len(ids), 1)
    share = min(0.10, max(0.02, 50 * num_classes / count), _MOST / count)
    ranks = np.argsort(hash_ids(ids) << np.uint64(1), kind="stable")  # the top bit is the canaries' fold
    held = np.zeros(len(ids), bool)
    by_class = ranks[np.argsort(labels[ranks], kind="stable")]
    for mine in np.split(by_class, np.cumsum(np.bincount(labels, minlength=num_classes))[:-1]):
        wanted = max(round(share * len(mine)), min(_MIN_PER_CLASS, len(mine) // 2))
        held[mine[:wanted]] = True
    return held


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
