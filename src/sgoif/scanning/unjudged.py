"""Examples that a scan cannot judge: they stay in its table, without a probability and with the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SgoifError
from sgoif.evidence import LIKENESS_COLUMNS
from sgoif.types import Columns

__all__ = ["LEAST_PER_CLASS", "append_unjudged", "find_reasons", "split_unjudged"]

LEAST_PER_CLASS = 5  # examples: in five folds, four of them are learnt from and one is judged

Reasons = NDArray[np.object_]  # a sentence per example; None where it can be judged


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


def append_unjudged(examples: Columns, unjudged: Columns | None) -> Columns:
    """Add rows of examples that could not be judged: empty but for what is given, the reason among it."""
    if unjudged is None or not len(unjudged["id"]):
        return examples
    count, none = len(unjudged["id"]), dict.fromkeys(LIKENESS_COLUMNS, 0)

    def add(name: str, like: NDArray[Any]) -> NDArray[Any]:
        empty = {"f": np.nan, "i": -1, "O": None, "b": False}.get(like.dtype.kind)
        return unjudged[name] if name in unjudged else np.full(count, none.get(name, empty), dtype=like.dtype)

    return {name: np.concatenate([values, add(name, values)]) for name, values in examples.items()}
