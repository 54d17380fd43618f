"""What training examples did to predictions: a table for people, and what a run kept of it for every anchor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SgoifError
from sgoif.findings.suspects import Sql, columns_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "INFLUENCE",
    "add_class_names",
    "effect_percent",
    "effect_table",
    "influence_on_anchors",
    "with_probabilities",
]

INFLUENCE = "influence"  # the column of `examples`: one number per class
MOST_NAMED = 5  # unknown ids in a message
NO_RUN = "no run was given: pass run="
NOT_IN_RUN = "this id is not in the run"
NO_PROBABILITIES = "this run has no probabilities"


def effect_percent(effect: NDArray[Any], loss: NDArray[Any]) -> NDArray[np.float64]:
    """An effect as a percentage of the loss that it changes; NaN where there is no loss to speak of."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found = 100.0 * np.asarray(effect, np.float64) / np.asarray(loss, np.float64)
    return np.where(np.isfinite(found), found, np.nan)


def effect_table(
    queries: Mapping[str, Sequence[Any]],
    examples: Mapping[str, Sequence[Any]],
    effect: NDArray[Any],
    *,
    class_names: Sequence[str] | None = None,
    sql: Sql | None = None,
) -> pa.Table:
    """One row for each pair of a query and one of its examples.

    Args:
        queries: columns query, query_label and query_loss, one entry per row.
        examples: columns id and given_label, one entry per row.
        effect: what training without the example would change in the loss of the query, per row.
        class_names: of the labels; their names are null without.
        sql: answers a SELECT over a run's tables, where there is one.
    """
    import pyarrow as pa

    loss = np.asarray(queries["query_loss"], np.float64)
    table = pa.table(
        {
            **{name: pa.array(values) for name, values in queries.items()},
            **{name: pa.array(values) for name, values in examples.items()},
            "effect": np.asarray(effect, np.float64),
            "effect_percent": pa.array(effect_percent(effect, loss), pa.float64(), from_pandas=True),
        }
    )
    return with_probabilities(add_class_names(table, class_names or (), ("given",)), sql)


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


def with_probabilities(table: pa.Table, sql: Sql | None) -> pa.Table:
    """Put ``p_mislabeled`` of each ``id`` behind the other columns, and ``no_p_reason`` where it is null; or anew."""
    import pyarrow as pa

    kept = [name for name in table.column_names if name not in ("p_mislabeled", "no_p_reason")]
    ids = table["id"].to_pylist()
    known = {} if sql is None else _probabilities(sql, ids)
    unknown = (None, NO_RUN if sql is None else NOT_IN_RUN)
    pairs = [known.get(id, unknown) for id in ids]
    p = pa.array([value for value, _ in pairs], pa.float64())
    reasons = pa.array([reason for _, reason in pairs], pa.string())
    return table.select(kept).append_column("p_mislabeled", p).append_column("no_p_reason", reasons)


def _probabilities(sql: Sql, ids: Sequence[Any]) -> dict[Any, tuple[float | None, str | None]]:
    """P and the reason for its absence of each id that the run knows; the rows asked for are read and no others."""
    there = columns_of(sql, "examples")
    if "id" not in there or _is_other_kind(sql, ids):
        return {}
    columns = ["id", *(name for name in ("p_mislabeled", "no_p_reason") if name in there)]
    found: dict[Any, tuple[float | None, str | None]] = {}
    for row in _find_ids(sql, ids, columns).to_pylist():
        p = row.get("p_mislabeled")
        if p is None or np.isnan(p):
            found[row["id"]] = None, row.get("no_p_reason") or NO_PROBABILITIES
        else:
            found[row["id"]] = float(p), None
    return found


def _is_other_kind(sql: Sql, ids: Sequence[Any]) -> bool:
    """Say whether the run's ids are strings and these are numbers, or the reverse."""
    first = sql("select id from examples limit 1")["id"].to_pylist()
    return bool(first) and len(ids) > 0 and isinstance(first[0], str) != isinstance(ids[0], str)


def _find_ids(sql: Sql, ids: Sequence[Any], columns: Sequence[str]) -> pa.Table:
    """Some columns of the examples with these ids, in any order; those that the run does not know are left out."""
    wanted = [item.item() if isinstance(item, np.generic) else item for item in dict.fromkeys(ids)]
    return sql(f"select {', '.join(columns)} from examples where id in (select unnest($ids))", ids=wanted)


def influence_on_anchors(
    sql: Sql,
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
    wanted = _as_list(ids)
    unknown = wanted if _is_other_kind(sql, wanted) else []
    if not unknown:
        table = _find_ids(sql, wanted, ["id", INFLUENCE])
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
    return values[:, [_class(anchor, values.shape[1], class_names) for anchor in _as_list(anchors)]]


def _as_list(given: Any) -> list[Any]:
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
