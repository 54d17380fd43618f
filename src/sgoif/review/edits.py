"""Corrected completions of sequences, put into the user's own data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sgoif.errors import SgoifError
from sgoif.review.changes import Change
from sgoif.sources.sequences import WHOLE_TEXTS, find_completion, replace_completion
from sgoif.sources.written import written_hash

__all__ = ["edit_column", "edit_item", "need_editable", "need_same_text"]

_NAMED = 10  # ids in a message
_COLUMNS = ("completion", "messages", *WHOLE_TEXTS)  # that can be edited, by preference


def edit_item(item: Any, change: Change, id: object, path: str) -> dict[str, Any]:
    """The item with its corrected completion.

    Raises:
        SgoifError: It has no text to correct, or not the one that was reviewed.
    """
    found = _edit(item, change)
    if found is None:
        raise SgoifError(_refuse([id], path))
    need_same_text(item, change, id, path)
    return found


def need_editable(items: Iterable[tuple[object, Any, Change]], path: str) -> None:
    """Raise where a corrected completion cannot be put into an item; the message names all such ids, or the first."""
    lost = []
    for id, item, change in items:
        if _edit(item, change) is None:
            lost.append(id)
        else:
            need_same_text(item, change, id, path)
    if lost:
        raise SgoifError(_refuse(lost, path))


def edit_column(
    names: Sequence[str], columns: Mapping[str, Any], edits: Mapping[int, tuple[object, Change]], path: str
) -> tuple[str, list[Any]]:
    """Name the column of a table that holds completions, and give its values with the corrected ones.

    Args:
        names: of the columns.
        columns: gives a column by its name.
        edits: ids and changes by row.
        path: of the manifest, for messages.

    Raises:
        SgoifError: The table has no texts to correct, or not those that were reviewed.
    """
    name = next((name for name in _COLUMNS if name in names), None)
    if name is None or "input_ids" in names:
        raise SgoifError(_refuse([id for id, _ in edits.values()], path))
    values = list(columns[name])
    for row, (id, change) in edits.items():
        values[row] = edit_item({name: values[row]}, change, id, path)[name]
    return name, values


def _edit(item: Any, change: Change) -> dict[str, Any] | None:
    if change.completion is None or not isinstance(item, Mapping):
        return None
    return replace_completion(item, change.completion)


def need_same_text(item: Any, change: Change, id: object, path: str) -> None:
    """Raise where an item has another completion than was reviewed; one without a text cannot be told."""
    completion = find_completion(item) if change.content and isinstance(item, Mapping) else None
    if completion is None or completion == change.completion:
        return
    if written_hash(completion) != change.content:
        raise SgoifError(
            f"the completion of {id!r} in this dataset is not the one that was reviewed, says '{path}'. Is it the "
            "dataset of that run, with the same ids?"
        )


def _refuse(ids: Sequence[object], path: str) -> str:
    more = f" and {len(ids) - _NAMED:,} more" if len(ids) > _NAMED else ""
    named = ", ".join(repr(str(id)[:80]) for id in ids[:_NAMED])
    return (
        f"'{path}' corrects completions that cannot be put into this dataset: its items have no text in `completion`, "
        "`messages` or `text`, or are tokenised already. Clean the texts, then tokenise them. Sequences: "
        f"{named}{more}."
    )
