"""A pandas ``DataFrame`` without what was dropped and with the new labels; known by its methods, never imported."""

from __future__ import annotations

from typing import Any

from sgoif.errors import SgoifError
from sgoif.review.changes import Changes, need_reviewed

__all__ = ["clean_frame"]

_USUAL = ("label", "labels", "target", "class")


def clean_frame(frame: Any, changes: Changes, label: str | None = None) -> Any:
    """Copy a frame without the rows that were dropped, and with the labels that were changed.

    Args:
        frame: with ids in a column ``id``, else known by their positions; labels are names or numbers of classes.
        changes: of a manifest.
        label: the label's column; by default one called ``label``, ``labels``, ``target`` or ``class``.
    """
    names = [str(name) for name in frame.columns]
    column = label or next((name for name in _USUAL if name in names), None)
    if column not in names:
        raise SgoifError(f"which column is the label? The table has {', '.join(names)}. Pass label=.")
    ids = frame["id"].tolist() if "id" in names else range(len(frame))
    if not changes.know_any(ids):
        raise SgoifError(
            f"no id of this table is in '{changes.path}': the table's look like {next(iter(ids), None)!r}, the "
            f"manifest's like {changes.first_id()!r}. Give it a column `id` with the ids of the run."
        )
    labels, kept = frame[column].tolist(), []
    numbers = changes.class_names() if any(isinstance(value, str) for value in labels) else {}
    names_of = {number: name for name, number in numbers.items()}
    for row, id in enumerate(ids):
        change, old = changes.get(id), labels[row]
        if change is not None:
            number = numbers.get(old, -1) if isinstance(old, str) else old
            need_reviewed(change, number, id, changes.path)
            if change.label is not None:
                labels[row] = names_of[change.label] if isinstance(old, str) else type(old)(change.label)
        if change is None or change.label is not None:
            kept.append(row)
    return frame.assign(**{column: labels}).iloc[kept]
