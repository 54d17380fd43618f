"""Which training sequences of a language model are bad, and which help a group of evaluation sequences most.

There are no probabilities: nothing that was checked says how scores of sequences and errors go together. Sequences are
ranked by a score that adds two ranks, that of the mean loss over the visits and that of the gradient cosine. It is not
tuned: on the one development draw so far it was below the better of loss and harm for every kind of error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SgoifError
from sgoif.findings.suspects import Sql

__all__ = ["NO_PROBABILITIES", "most_helpful", "score_sequences", "sequence_issues"]

NO_PROBABILITIES = (
    "scores of sequences are not calibrated yet: no checked or planted errors tell how often such a score means one"
)
_SHOWN = (
    *("score", "loss", "loss_first", "loss_last", "harm", "worst", "worst_group", "cosine"),
    *("num_tokens", "n_visits", "n_judged", "p_mislabeled", "no_p_reason"),
)


def score_sequences(columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """A score in [0, 1], larger for what is more suspicious; NaN for a sequence that was never judged.

    >>> score_sequences({"loss": np.array([1.0, 2.0, 3.0]), "cosine": np.array([0.0, -1.0, 1.0])}).round(2).tolist()
    [0.25, 0.25, 1.0]
    """
    loss, cosine = (np.asarray(columns[name], np.float64) for name in ("loss", "cosine"))
    is_judged = np.isfinite(loss) & np.isfinite(cosine)
    found = np.full(len(loss), np.nan)
    found[is_judged] = (_ranks(loss[is_judged]) + _ranks(cosine[is_judged])) / 2
    return found


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks from 0 to 1; equal values share their mean rank."""
    if len(values) < 2:
        return np.full(len(values), 0.5)
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    middle = counts.cumsum() - (counts + 1) / 2
    ranks: NDArray[np.float64] = middle[place] / (len(values) - 1)
    return ranks


def sequence_issues(sql: Sql, *, top: int | None = None) -> Any:
    """Make the table of sequences, most suspicious first; only the rows that are shown leave DuckDB.

    Args:
        sql: answers a SELECT over a run's tables.
        top: how many rows; None or 0 for all.
    """
    limit = f" limit {_whole('top', top)}" if top else ""
    return sql(f"select id, {', '.join(_SHOWN)} from examples order by score desc nulls last, id{limit}")


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
