"""Which examples a scan holds out, which of them a person has verified, and which it cannot judge.

Those that it cannot judge stay in its table, without a probability and with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SgoifError
from sgoif.evidence import hash_ids
from sgoif.files.tables import read_csv_rows

__all__ = ["LEAST_PER_CLASS", "choose_holdout", "find_reasons", "read_verified", "split_unjudged"]

LEAST_PER_CLASS = 5  # examples: half of them are held out, and two folds of these are asked about each other
_MIN_PER_CLASS = 20
_MOST = 20_000  # in all: each is scored under every class

Reasons = NDArray[np.object_]  # a sentence per example; None where it can be judged


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


def find_reasons(
    labels: NDArray[np.int64],
    num_classes: int,
    class_names: Sequence[str] = (),
    *,
    known: Mapping[str, NDArray[np.bool_]] | None = None,
) -> Reasons:
    """Find why examples cannot be judged, ``[N]``.

    Args:
        labels: given classes, ``[N]``.
        num_classes: ``C``.
        class_names: for the sentences; numbers where there are none.
        known: reasons that are known already, each with the examples that have it, ``[N]``.

    Raises:
        SgoifError: Fewer than two classes are left.
    """
    found: Reasons = np.full(len(labels), None, dtype=object)
    usable = np.ones(len(labels), bool)
    for reason, has_it in (known or {}).items():
        found[has_it & usable] = reason
        usable &= ~has_it
    counts = np.bincount(labels[usable], minlength=num_classes)
    if (counts >= LEAST_PER_CLASS).sum() < 2:
        largest = ", ".join(f"{count:,}" for count in np.sort(counts)[::-1][:5])
        raise SgoifError(
            f"a scan needs two classes with at least {LEAST_PER_CLASS} examples each; the largest of "
            f"{num_classes:,} classes have {largest}."
        )
    by_class: Reasons = np.full(num_classes, None, dtype=object)
    for label in np.flatnonzero((counts > 0) & (counts < LEAST_PER_CLASS)).tolist():
        name = class_names[label] if label < len(class_names) else str(label)
        have = f"{counts[label]} example{'s' if counts[label] > 1 else ''}"
        by_class[label] = f"class {name} has {have}, too few to judge"
    found[usable] = by_class[labels[usable]]
    return found


def split_unjudged(
    ids: NDArray[Any], labels: NDArray[np.int64], reasons: Reasons
) -> tuple[NDArray[np.bool_], dict[str, NDArray[Any]] | None]:
    """Tell which examples can be judged, and give the rows of the others in the table of examples; None without any."""
    kept = np.array([reason is None for reason in reasons], dtype=bool)
    if kept.all():
        return kept, None
    return kept, {"id": ids[~kept], "given_label": labels[~kept], "no_p_reason": reasons[~kept]}
