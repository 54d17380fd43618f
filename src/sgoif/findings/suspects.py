"""The most suspicious labels of a run, asked of its tables in place: only the rows that are shown leave DuckDB.

Runs differ: one that was not calibrated has no probabilities, one that was added up from its visits has fewer columns,
a scan has no influences and no hold-out. Columns that a run lacks are empty here, so that nobody after need ask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from sgoif.errors import SgoifError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    *("FLAGGED", "UNLIKELY", "Sql", "columns_of", "has_probabilities", "key_without_p", "labels_of", "rate_columns"),
    *("suspects", "unverified"),
]

FLAGGED = 0.5  # from this p_mislabeled on a label is more likely wrong than right
UNLIKELY = 0.1  # below this one it is unlikely to be wrong

Sql = Callable[..., "pa.Table"]

_WHOLE = {"given_label": -1, "suggested_label": -1, "suggested_label_2": -1, "suggested_label_3": -1, "n_visits": 0}
_NUMBERS = (
    *("p_mislabeled", "p_mislabeled_low", "p_mislabeled_high", "harm", "worst"),
    *("confidence", "margin", "suggested_share", "label_score"),
    *("p_suggested", "p_suggested_2", "p_suggested_3"),
)
_ON_HOLDOUT = {"harm": "harm_solved", "worst": "worst_solved"}  # a hold-out example is scored by solving alone
_CONSTANT_ON_HOLDOUT = {"n_visits": "1::bigint", "suggested_share": "1::double"}


def suspects(
    sql: Sql,
    *,
    top: int | None = None,
    given: int | None = None,
    min_p: float | None = None,
    ids: Sequence[Any] | None = None,
) -> dict[str, NDArray[Any]]:
    """Rows as :func:`sgoif.findings.label_issues` takes them, most suspicious first, hold-out examples among them.

    Args:
        sql: answers a SELECT over a run's tables.
        top: how many; None or 0 for all.
        given: only those labelled as this class.
        min_p: only those at least this probably wrong.
        ids: only these.
    """
    if top is not None and top < 0:
        raise SgoifError(f"top is how many rows, 0 or more, got {top}.")
    if min_p is not None and (isinstance(min_p, str) or not 0 <= min_p <= 1):
        raise SgoifError(f"min_p is a probability between 0 and 1, got {min_p!r}.")
    where, parameters = ["given_label >= 0"], dict[str, Any]()
    if given is not None:
        where, parameters["given"] = [*where, "given_label = $given"], given
    if min_p is not None:
        where, parameters["min_p"] = [*where, "p_mislabeled >= $min_p"], min_p
    if ids is not None:
        where = [*where, "id::varchar in (select unnest($ids))"]
        parameters["ids"] = [str(value) for value in ids]
    is_calibrated = has_probabilities(sql)
    key = "p_mislabeled" if is_calibrated else key_without_p(sql)
    limit = f" limit {int(top)}" if top else ""
    table = sql(
        f"select * from ({_select(sql)}) where {' and '.join(where)} "
        f"order by {key} desc nulls last, source desc, id{limit}",
        **parameters,
    )
    return {name: table[name].to_numpy(zero_copy_only=False) for name in table.column_names}


def key_without_p(sql: Sql) -> str:
    """What ranks the labels of a run without probabilities, the most suspicious highest."""
    present = columns_of(sql, "examples")
    for name in ("label_score", "margin"):
        if name in present and sql(f'select count("{name}") as n from examples')["n"][0].as_py():
            return f"-{name}"
    return "worst"


def labels_of(sql: Sql) -> str:
    """What to select the labels from that a run's totals are about, as the FROM of a query.

    Labels that a person has verified are known to be right, and examples without a class have none. The hold-out of a
    training is another dataset, which no total is about.
    """
    return f"(select *, 'train' as source from examples where given_label >= 0 and {unverified(sql)})"


def unverified(sql: Sql) -> str:
    """The condition that no person has verified an example's label; a scan says of which of them one did."""
    return "not coalesce(trusted, false)" if "trusted" in columns_of(sql, "examples") else "true"


def rate_columns(sql: Sql) -> dict[str, NDArray[Any]]:
    """What error rates by class need of every label; NaN where the run has no probabilities."""
    present = columns_of(sql, "examples")
    labels = [_whole(name, present) for name in ("given_label", "suggested_label")]
    p = [_number(name, present) for name in ("p_mislabeled", "p_mislabeled_low", "p_mislabeled_high")]
    table = sql(f"select {', '.join(labels + p)} from {labels_of(sql)}")
    return {name: table[name].to_numpy(zero_copy_only=False) for name in table.column_names}


def columns_of(sql: Sql, table: str) -> Mapping[str, str]:
    """Names and types of a table's columns; none where a run has no such table."""
    try:
        return {field.name: str(field.type) for field in sql(f"select * from {table} limit 0").schema}
    except SgoifError:
        return {}


def has_probabilities(sql: Sql) -> bool:
    """Whether any training example of a run has a probability."""
    if "p_mislabeled" not in columns_of(sql, "examples"):
        return False
    return bool(sql("select count(p_mislabeled) as n from examples")["n"][0].as_py())


def _select(sql: Sql) -> str:
    """Training and hold-out examples whose labels are not verified, with the same columns."""
    own, held = columns_of(sql, "examples"), columns_of(sql, "holdout")
    if not own:
        raise SgoifError("this run has no examples; they are added up when it ends.")
    has_holdout = bool(held)
    are_numbers = "int" in own["id"] and (not has_holdout or "int" in held["id"])
    id_type = "bigint" if are_numbers else "varchar"
    fields = [_whole(name, own) for name in _WHOLE] + [_number(name, own) for name in _NUMBERS] + [_reason(own)]
    selected = f"select id::{id_type} as id, {', '.join(fields)}, 'train' as source from examples"
    selected += f" where {unverified(sql)}"
    if not has_holdout:
        return selected
    fields = [_on_holdout(name, held) for name in (*_WHOLE, *_NUMBERS)] + [_reason(held)]
    return (
        f"{selected} union all select id::{id_type} as id, {', '.join(fields)}, 'holdout' as source from holdout "
        "where not coalesce(trusted, false)"
    )


def _on_holdout(name: str, present: Mapping[str, str]) -> str:
    if name in _CONSTANT_ON_HOLDOUT:
        return f'{_CONSTANT_ON_HOLDOUT[name]} as "{name}"'
    return _whole(name, present) if name in _WHOLE else _number(name, present, _ON_HOLDOUT.get(name))


def _whole(name: str, present: Mapping[str, str]) -> str:
    value = f'coalesce("{name}", {_WHOLE[name]})' if name in present else f"({_WHOLE[name]})"
    return f'{value}::bigint as "{name}"'


def _reason(present: Mapping[str, str]) -> str:
    return f"{'no_p_reason' if 'no_p_reason' in present else 'null'}::varchar as no_p_reason"


def _number(name: str, present: Mapping[str, str], alias: str | None = None) -> str:
    stored = alias or name
    return f'"{stored}"::double as "{name}"' if stored in present else f'null::double as "{name}"'
