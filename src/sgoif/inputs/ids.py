"""Whose picture is this? The one rule for ids of a dataset that brings none with its items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["ids_of", "is_subset", "is_with_ids"]


def ids_of(dataset: Any) -> Sequence[Any]:
    """``dataset.ids`` where it has them, followed through subsets; else positions in what everything was cut from.

    So the two sides of a split never share an id, and both speak of the dataset that the user knows.
    """
    own = getattr(dataset, "ids", None)
    if own is not None and not callable(own):
        return own  # type: ignore[no-any-return]
    if is_subset(dataset):
        inner = ids_of(dataset.dataset)
        return [inner[int(i)] for i in dataset.indices]
    return range(len(dataset))


def is_subset(dataset: Any) -> bool:
    """Whether it is a part of another dataset, as ``torch.utils.data.Subset`` is."""
    return hasattr(dataset, "indices") and hasattr(dataset, "dataset")


def is_with_ids(dataset: Any) -> bool:
    """Whether it is the wrapper of ``sgoif.with_ids``, whose items are those of ``dataset.dataset`` with an id."""
    return bool(getattr(type(dataset), "wraps_items", False))
