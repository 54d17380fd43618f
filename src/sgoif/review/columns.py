"""A Hugging Face ``Dataset`` without what was dropped and with the new labels; known by its methods, never imported."""

from __future__ import annotations

import inspect
from typing import Any

from sgoif.errors import SgoifError
from sgoif.review.changes import Changes, need_reviewed, new_label

__all__ = ["clean_columns"]


def clean_columns(dataset: Any, changes: Changes, label: str | None = None) -> Any:
    """Replace the label column and select the rows that stay; other columns are not copied.

    Args:
        dataset: with ids in a column ``id``, else known by their positions.
        changes: of a manifest.
        label: the label's column; by default the one that has classes, or one called ``label`` or ``labels``.
    """
    name = label or _label_column(dataset)
    ids = list(dataset["id"]) if "id" in dataset.column_names else range(len(dataset))
    found = {
        row: change for row, change in ((row, changes.get(id)) for row, id in enumerate(ids)) if change is not None
    }
    if not found and not changes.know_any(ids):
        raise SgoifError(
            f"no id of this dataset is in '{changes.path}': the dataset's look like {next(iter(ids), None)!r}, the "
            f"manifest's like {changes.first_id()!r}. Give it a column `id` with the ids of the run."
        )
    labels = list(dataset[name])
    for row, change in found.items():
        if change.label is None:
            need_reviewed(change, labels[row], ids[row], changes.path)
        else:
            labels[row] = new_label(change, labels[row], ids[row], changes.path)
    gone = {row for row, change in found.items() if change.label is None}
    replaced = _with_column(dataset.remove_columns(name), name, labels, dataset.features[name])
    return replaced.select_columns(dataset.column_names).select([r for r in range(len(dataset)) if r not in gone])


def _with_column(dataset: Any, name: str, values: list[Any], feature: Any) -> Any:
    if "feature" in inspect.signature(dataset.add_column).parameters:
        return dataset.add_column(name, values, feature=feature)
    return dataset.add_column(name, values).cast_column(name, feature)  # older versions copy everything here


def _label_column(dataset: Any) -> str:
    with_classes = [name for name, feature in dataset.features.items() if hasattr(feature, "names")]
    usual = [name for name in ("label", "labels") if name in dataset.column_names]
    found = with_classes if len(with_classes) == 1 else usual
    if not found:
        raise SgoifError(f"which column is the label? It has {', '.join(dataset.column_names)}. Pass label=.")
    return found[0]
