"""What did these examples do to each class? Read from a run that kept its examples' influence on every anchor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sgoif.adaptors.suspects import columns_of
from sgoif.errors import SgoifError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["INFLUENCE", "influence_on_anchors"]

INFLUENCE = "influence"  # the column of `examples`: one number per class


def influence_on_anchors(
    sql: Callable[..., pa.Table],
    ids: Sequence[Any],
    anchors: Sequence[int | str] | None = None,
    *,
    class_names: Sequence[str] = (),
) -> NDArray[np.float64]:
    """``I(i, c)`` for some examples and classes, ``[ids, anchors]``; NaN for a class without hold-out examples.

    Only the rows asked for are read.

    Args:
        sql: answers a SELECT over the run's tables.
        ids: of training examples.
        anchors: classes by number or name; all by default.
        class_names: of the run.

    Raises:
        SgoifError: The run kept no influence by anchor, or an id or class is unknown to it.
    """
    if INFLUENCE not in columns_of(sql, "examples"):
        raise SgoifError(
            "this run did not keep what each example did to each anchor: a visit holds `harm` (the mean), `worst` and "
            "`own` only. Ask for it with sgoif.audit(..., keep_anchors=True), or compute it with sgoif.attribute()."
        )
    wanted = [item.item() if isinstance(item, np.generic) else item for item in ids]
    table = sql(f"select id, {INFLUENCE} from examples where id in (select unnest($ids))", ids=wanted)
    found = dict(zip(table["id"].to_pylist(), table[INFLUENCE].to_pylist(), strict=True))
    unknown = [item for item in wanted if item not in found]
    if unknown:
        raise SgoifError(f"{len(unknown)} of {len(wanted)} ids are not in this run, the first of them {unknown[0]!r}.")
    values = np.array([found[item] for item in wanted], np.float64)
    if anchors is None:
        return values
    return values[:, [_class(anchor, values.shape[1], class_names) for anchor in anchors]]


def _class(anchor: int | str, num_classes: int, names: Sequence[str]) -> int:
    place = list(names).index(anchor) if isinstance(anchor, str) and anchor in names else anchor
    if isinstance(place, str) or not 0 <= place < num_classes:
        raise SgoifError(f"no anchor {anchor!r}; this run has one per class, 0 to {num_classes - 1}.")
    return int(place)
