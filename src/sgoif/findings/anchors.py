"""What did these examples do to each class? Read from a run that kept its examples' influence on every anchor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SgoifError
from sgoif.findings.effects import find_ids, is_other_kind
from sgoif.findings.suspects import columns_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["INFLUENCE", "influence_on_anchors"]

INFLUENCE = "influence"  # the column of `examples`: one number per class
MOST_NAMED = 5  # unknown ids in a message


def influence_on_anchors(
    sql: Callable[..., pa.Table],
    ids: Sequence[Any] | Any,
    anchors: Sequence[int | str] | int | str | None = None,
    *,
    class_names: Sequence[str] = (),
) -> NDArray[np.float64]:
    """``I(i, c)`` for some examples and classes, ``[ids, anchors]``; NaN for a class without hold-out examples.

    Only the rows asked for are read.

    Args:
        sql: answers a SELECT over the run's tables.
        ids: of training examples; one alone gives one row.
        anchors: classes by number or name, or one of them; all by default.
        class_names: of the run.

    Raises:
        SgoifError: The run kept no influence by anchor, or an id or class is unknown to it.
    """
    if INFLUENCE not in columns_of(sql, "examples"):
        raise SgoifError(
            "this run did not keep what each example did to each anchor: a visit holds `harm` (the mean), `worst` and "
            "`own` only. Ask for it with sgoif.audit(..., keep_anchors=True), or compute it with sgoif.attribute()."
        )
    wanted = as_list(ids)
    unknown = wanted if is_other_kind(sql, wanted) else []
    if not unknown:
        table = find_ids(sql, wanted, ["id", INFLUENCE])
        found = dict(zip(table["id"].to_pylist(), table[INFLUENCE].to_pylist(), strict=True))
        unknown = [item for item in wanted if item not in found]
    if unknown:
        some = ", ".join(map(repr, unknown[:MOST_NAMED])) + (", …" if len(unknown) > MOST_NAMED else "")
        like = sql("select id from examples limit 1")["id"].to_pylist()
        raise SgoifError(
            f"{len(unknown)} of {len(wanted)} ids are not in this run: {some}. Its ids are those that the training "
            f"examples had{f', like {like[0]!r}' if like else ''}."
        )
    values = np.array([found[item] for item in wanted], np.float64)
    if anchors is None:
        return values
    return values[:, [_class(anchor, values.shape[1], class_names) for anchor in as_list(anchors)]]


def as_list(given: Any) -> list[Any]:
    """Some ids, or one, as a list of plain Python values: a string is one id and not its letters."""
    if hasattr(given, "tolist"):  # arrays and tensors
        given = given.tolist()
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        return [given]
    return [item.item() if hasattr(item, "item") else item for item in given]


def _class(anchor: int | str, num_classes: int, names: Sequence[str]) -> int:
    place = list(names).index(anchor) if isinstance(anchor, str) and anchor in names else anchor
    if isinstance(place, str) or not 0 <= place < num_classes:
        raise SgoifError(f"no anchor {anchor!r}; this run has one per class, 0 to {num_classes - 1}.")
    return int(place)
