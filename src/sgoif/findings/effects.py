"""What training examples did to predictions, as a table that people read: who, under which label, and how much."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sgoif.findings.suspects import columns_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["effect_percent", "effect_table", "find_ids", "is_other_kind", "with_names", "with_probabilities"]

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
    sql: Callable[..., pa.Table] | None = None,
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
    return with_probabilities(with_names(table, class_names), sql)


def with_names(table: pa.Table, class_names: Sequence[str] | None) -> pa.Table:
    """Put ``given_name`` behind ``given_label``: null where classes have no names."""
    import pyarrow as pa

    names = list(class_names or ())
    labels = table["given_label"].to_pylist()
    found = [names[label] if 0 <= label < len(names) else None for label in labels]
    place = table.column_names.index("given_label") + 1
    return table.add_column(place, "given_name", pa.array(found, pa.string()))


def with_probabilities(table: pa.Table, sql: Callable[..., pa.Table] | None) -> pa.Table:
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


def _probabilities(sql: Callable[..., pa.Table], ids: Sequence[Any]) -> dict[Any, tuple[float | None, str | None]]:
    """P and the reason for its absence of each id that the run knows; the rows asked for are read and no others."""
    there = columns_of(sql, "examples")
    if "id" not in there or is_other_kind(sql, ids):
        return {}
    columns = ["id", *(name for name in ("p_mislabeled", "no_p_reason") if name in there)]
    found: dict[Any, tuple[float | None, str | None]] = {}
    for row in find_ids(sql, ids, columns).to_pylist():
        p = row.get("p_mislabeled")
        if p is None or np.isnan(p):
            found[row["id"]] = None, row.get("no_p_reason") or NO_PROBABILITIES
        else:
            found[row["id"]] = float(p), None
    return found


def is_other_kind(sql: Callable[..., pa.Table], ids: Sequence[Any]) -> bool:
    """Say whether the run's ids are strings and these are numbers, or the reverse."""
    first = sql("select id from examples limit 1")["id"].to_pylist()
    return bool(first) and len(ids) > 0 and isinstance(first[0], str) != isinstance(ids[0], str)


def find_ids(sql: Callable[..., pa.Table], ids: Sequence[Any], columns: Sequence[str]) -> pa.Table:
    """Some columns of the examples with these ids, in any order; those that the run does not know are left out."""
    wanted = [item.item() if isinstance(item, np.generic) else item for item in dict.fromkeys(ids)]
    return sql(f"select {', '.join(columns)} from examples where id in (select unnest($ids))", ids=wanted)
