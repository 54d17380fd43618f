"""Which training sequences of a language model are bad, and which help a group of evaluation sequences most.

Sequences are ranked by their loss, weighted by how they conflict with the evaluation sequences: a wrong completion is
hard to predict, and hurts what it is judged by. There are no probabilities until somebody has
checked a sample (:mod:`sgoif.review.verify`): then a sequence has the share of wrong ones in its part of the ranking.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sgoif.errors import SgoifError
from sgoif.findings.suspects import Sql, columns_of

__all__ = [
    *("NO_PROBABILITIES", "harm_by_group", "most_helpful", "ranked_sequences", "sequence_duplicates"),
    "sequence_issues",
]

NO_PROBABILITIES = (
    "nobody has checked how often such a score means an error; `sgoif verify` draws a sample, which takes ten minutes"
)
_NO_TOKENS = "it has no token to predict"
_ORDERS = ("suspicion", "loss_last", "loss_tuned", "loss", "loss_first", "harm", "conflict", "worst", "cosine")
_OF_AUDITS = ("conflict", "coverage", "loss_tuned")
# A loss times x + √(1 + x²): 1 at x = 0, 2x for large ones, and 1/(2|x|) for very negative ones. In an audit x is the
# conflict in twice its median size, times the coverage, by which the loss lies between those before and after tuning.
# A watched training has its harm, which is noisier, and is trusted less: in 16 times the median, after division by the
# root of the loss, it was never below the loss, and 2 to 5 AP above it on near intents (Banking77 and CLINC150).
_BY_CONFLICT = ("conflict", 2)
_BY_HARM = ("harm / sqrt(loss_last + 0.01)", 16)
_SHOWN = (
    *("loss", "loss_first", "loss_last", "loss_tuned"),
    *("harm", "conflict", "coverage", "worst", "worst_group", "cosine"),
    *("num_tokens", "n_visits", "n_judged"),
)
_ENDS = {"p_mislabeled": "value", "p_mislabeled_low": "low", "p_mislabeled_high": "high"}


def sequence_issues(
    sql: Sql,
    info: Mapping[str, Any],
    *,
    by: str = "suspicion",
    top: int | None = None,
    ids: Sequence[Any] | None = None,
) -> Any:
    """Make the table of sequences, largest first; only the rows that are shown leave DuckDB.

    Args:
        sql: answers a SELECT over a run's tables.
        info: of the run; it has what people found in a sample, or why that is not used.
        by: the column that they are ranked by.
        top: how many rows; None or 0 for all.
        ids: of these alone.

    Raises:
        SgoifError: they are not ranked by such a column, or the run has none.
    """
    if by not in _ORDERS:
        raise SgoifError(f"sequences are ranked by one of {', '.join(_ORDERS)}, got {by!r}.")
    if by in _OF_AUDITS and by not in columns_of(sql, "examples"):
        raise SgoifError(f"this run has no {by}: {_why_absent(by, info)}.")
    limit = f" limit {_whole('top', top)}" if top else ""
    columns = ", ".join([*_SHOWN, *_probabilities(info.get("checked"), info.get("why_not_checked"))])
    query = f"select id, suspicion, {columns} from ({ranked_sequences(sql)})"
    order = f"order by {by} desc nulls last, loss_last desc nulls last, id{limit}"
    if ids is None:
        return sql(f"{query} {order}")
    asked = [str(id) for id in ids]  # chosen after all are ranked: suspicion needs the median of all
    return sql(f"from ({query}) where id::varchar in (select unnest($ids::varchar[])) {order}", ids=asked)


def _why_absent(name: str, info: Mapping[str, Any]) -> str:
    if info.get("kind") != "audit":
        return "a watched training does not find it, an audit of the finished model does"
    if name == "loss_tuned":
        return str((info.get("tuning") or {}).get("why_not", "the audit did not tune the model"))
    return "no scored layer shows what the model makes of a prompt"


def _probabilities(checked: Mapping[str, Any] | None, why_not: str | None) -> list[str]:
    """The share of wrong ones among those that people checked in the same part of the ranking, with its interval."""
    parts = (checked or {}).get("parts") or ()
    if not parts:
        reason = "no_p_reason" if why_not is None else f"'{why_not.replace(chr(39), chr(39) * 2)}' as no_p_reason"
        return [*(f"null::double as {name}" for name in _ENDS), reason]

    def choose(name: str) -> str:
        return " ".join(f"when place < {int(part['end'])} then {float(part[name])}::double" for part in parts)

    shares = (f"case when num_tokens = 0 then null {choose(key)} end as {name}" for name, key in _ENDS.items())
    return [*shares, f"if(num_tokens = 0, '{_NO_TOKENS}', null) as no_p_reason"]


def ranked_sequences(sql: Sql) -> str:
    """The query for the table of examples with its suspicions, and each one's place by them, from 0 on."""
    order = "suspicion desc nulls last, loss_last desc nulls last, id"
    return f"select *, row_number() over (order by {order}) - 1 as place from ({_suspicions(sql)})"


def _suspicions(sql: Sql) -> str:
    """The table of examples with its suspicions, and nulls for what an audit alone has."""
    missing = [name for name in _OF_AUDITS if name not in columns_of(sql, "examples")]
    score, width = _BY_HARM if "conflict" in missing else _BY_CONFLICT
    nulls = "".join(f"null::double as {name}, " for name in missing)
    scored = f"select *, {nulls}{score} as score from examples"
    examples = f"select *, if(score is null, 0, coalesce(coverage, 1)) as known from ({scored})"
    summed = f"*, sum(known) over (order by abs(score)) as below, sum(known) over () as whole from ({examples})"
    middle = "min(abs(score)) filter (below {} whole / 2) over ()"
    median = f"({middle.format('>=')} + {middle.format('>')}) / 2"  # of its size, weighed by coverage
    sized = f"select *, coalesce(known * score / nullif({width} * {median}, 0), 0) as x from (select {summed})"
    loss = "loss_last + known * coalesce(loss_tuned - loss_last, 0)"
    return f"select *, ({loss}) * (x + sqrt(1 + x * x)) as suspicion from ({sized})"


def sequence_duplicates(sql: Sql) -> Any:
    """Pairs of training sequences with the same prompt: other completions first, then copies of evaluation sequences.

    Columns: ``kind``, one of ``"other completion"`` (the same prompt is completed in another way more often, or first),
    ``"evaluation"`` (a group has the same sequence) and ``"same"``; ``id``; ``other_id``, what it is compared with, or
    null; ``group_name``, or null; ``n_same``, how many training sequences are the same as ``id``.

    Raises:
        SgoifError: the run has no keys of its sequences.
    """
    if "sequence_key" not in columns_of(sql, "examples"):
        raise SgoifError("this run knows no tokens of its sequences; an audit of the finished model does.")
    return sql(
        """
        with counted as (
            select id, prompt_key, sequence_key, copied_group,
                   count(*) over (partition by sequence_key) as n_same,
                   first(id) over (partition by sequence_key order by id) as first_id
            from examples where sequence_key <> 0
        ),
        completions as (
            select *, first(id) over (partition by prompt_key order by n_same desc, id) as usual_id
            from counted where id = first_id
        )
        select 'other completion' as kind, id, usual_id as other_id, null::varchar as group_name, n_same
        from completions where prompt_key <> 0 and id <> usual_id
        union all
        select 'evaluation', id, null, copied_group::varchar, n_same from counted where copied_group is not null
        union all
        select 'same', id, first_id, null, n_same from counted where id <> first_id
        order by kind = 'same', kind = 'evaluation', n_same desc, other_id, id
        """
    )


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
