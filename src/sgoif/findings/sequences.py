"""Which training sequences of a language model are bad, and which help a group of evaluation sequences most.

There are no probabilities. Sequences are ranked by their loss at the last visit, weighted by where their harm stands
among all: a wrong completion is hard to predict, and hurts what it is judged by.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sgoif.errors import SgoifError
from sgoif.findings.suspects import Sql

__all__ = ["NO_PROBABILITIES", "harm_by_group", "most_helpful", "sequence_issues"]

NO_PROBABILITIES = (
    "scores of sequences are not calibrated yet: no checked or planted errors tell how often such a score means one"
)
_ORDERS = ("suspicion", "loss_last", "loss", "loss_first", "harm", "worst", "cosine")
# The loss, times 0.5 for the least harmful sequence up to 1.5 for the most harmful one, by rank. On Banking77 that was
# never below the loss, whatever the wrong completions were, and 12 AP above it where a fifth was of near intents.
_SUSPICION = (
    "loss_last * case when harm is null then 1.0 "
    "else 0.5 + percent_rank() over (partition by harm is null order by harm) end as suspicion"
)
_SHOWN = (
    *(_SUSPICION, "loss", "loss_first", "loss_last", "harm", "worst", "worst_group", "cosine"),
    *("num_tokens", "n_visits", "n_judged", "p_mislabeled", "no_p_reason"),
)


def sequence_issues(
    sql: Sql, *, by: str = "suspicion", top: int | None = None, ids: Sequence[Any] | None = None
) -> Any:
    """Make the table of sequences, largest first; only the rows that are shown leave DuckDB.

    Args:
        sql: answers a SELECT over a run's tables.
        by: the column that they are ranked by.
        top: how many rows; None or 0 for all.
        ids: of these alone.

    Raises:
        SgoifError: they are not ranked by such a column.
    """
    if by not in _ORDERS:
        raise SgoifError(f"sequences are ranked by one of {', '.join(_ORDERS)}, got {by!r}.")
    limit = f" limit {_whole('top', top)}" if top else ""
    query = f"select id, {', '.join(_SHOWN)} from examples"
    order = f"order by {by} desc nulls last, loss_last desc nulls last, id{limit}"
    if ids is None:
        return sql(f"{query} {order}")
    asked = [str(id) for id in ids]  # chosen after all are ranked: suspicion is a matter of ranks among all
    return sql(f"from ({query}) where id::varchar in (select unnest($ids::varchar[])) {order}", ids=asked)


def harm_by_group(sql: Sql, ids: Sequence[Any]) -> dict[str, dict[str, float]]:
    """The harm of some sequences to each group, by ``str(id)``; those that were never judged are left out."""
    effects = sql(
        "select id::varchar as id, group_name, harm from group_effects where id::varchar in "
        "(select unnest($ids::varchar[]))",
        ids=[str(id) for id in ids],
    )
    found: dict[str, dict[str, float]] = {}
    for id, group, value in zip(*(effects[name].to_pylist() for name in ("id", "group_name", "harm"))):
        found.setdefault(id, {})[group] = value
    return found


def most_helpful(sql: Sql, group: str, count: int, *, groups: list[str]) -> Any:
    """The sequences that lower a group's loss most, by the curvature that was used; ``help`` is minus the harm.

    Args:
        sql: answers a SELECT over a run's tables.
        group: name of the group.
        count: how many rows.
        groups: names that there are.

    Raises:
        SgoifError: there is no such group.
    """
    if group not in groups:
        raise SgoifError(f"this run has no group {group!r}; it has {', '.join(groups) or 'none'}.")
    query = (
        "select e.id, -e.harm as help, -e.cosine as alignment, x.loss, x.num_tokens, x.n_visits from group_effects e "
        "join examples x on x.id = e.id where e.group_name = $group order by e.harm, e.id "
    )
    return sql(f"{query} limit {_whole('count', count)}", group=group)


def _whole(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise SgoifError(f"{name} is how many rows, a whole number from 0 on, got {value!r}.")
    return value
