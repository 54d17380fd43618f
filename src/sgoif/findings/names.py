"""Names of classes beside their numbers, in every table that people read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["add_class_names"]


def add_class_names(table: pa.Table, class_names: Sequence[str], kinds: Sequence[str]) -> pa.Table:
    """Put names of classes (``given_name``) behind their numbers (``given_label``).

    A name is null where the class has none, or where there is no class. Columns that are there already stay.

    Args:
        table: with a column ``<kind>_label`` for each kind.
        class_names: by number; may be empty.
        kinds: such as ``given`` and ``suggested``.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    names = pa.array(class_names, pa.string())
    for kind in kinds:
        column = f"{kind}_name"
        if column in table.column_names:
            continue
        labels = table[f"{kind}_label"].cast(pa.int64())
        is_named = pc.and_(pc.greater_equal(labels, 0), pc.less(labels, len(names)))
        named = names.take(pc.if_else(is_named, labels, None))
        table = table.add_column(table.column_names.index(f"{kind}_label") + 1, column, named)
    return table
