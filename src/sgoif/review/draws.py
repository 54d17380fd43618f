"""Checks for a review out of a run's tables: a random sample of what is on no list, and canaries.

Rows are chosen inside DuckDB, in an order given by a hash of seed and id: the same on every machine, and only the
chosen rows leave it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sgoif.review.plan import CANARY, RANDOM, PlannedCard

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["draw_canaries", "draw_unlisted"]

_SURELY_RIGHT = 0.02  # p_mislabeled below which an unverified hold-out label may serve as a canary's truth
_SUGGESTIONS = ("suggested_label", "suggested_label_2", "suggested_label_3")

Sql = Callable[..., "pa.Table"]


def draw_unlisted(sql: Sql, listed: Iterable[object], count: int, seed: int = 0) -> list[PlannedCard]:
    """Draw training examples that are on no list, all with the same probability.

    Args:
        sql: answers a SELECT over ``examples`` (``Run.sql``, ``RunFiles.sql``).
        listed: ids that are on a list.
        count: how many.
        seed: another seed gives another sample.
    """
    present = sql("select * from examples limit 0").column_names
    p = "p_mislabeled" if "p_mislabeled" in present else "null::double as p_mislabeled"
    suggested = [name for name in _SUGGESTIONS if name in present]
    rows = sql(
        f"select id, given_label, {', '.join([*suggested, p])} from examples where given_label >= 0 "
        "and id::varchar not in (select unnest($listed::varchar[])) "
        "order by md5($seed || '/' || id::varchar) limit $count",
        listed=[str(value) for value in listed],
        seed=str(seed),
        count=count,
    ).to_pylist()
    return [
        PlannedCard(
            row["id"],
            row["given_label"],
            _suggested([row[name] for name in suggested]),
            None,
            RANDOM,
            p=_number(row["p_mislabeled"]),
        )
        for row in rows
    ]


def draw_canaries(
    sql: Sql,
    listed: Iterable[object],
    count: int,
    *,
    num_classes: int,
    transition: ArrayLike | None = None,
    seed: int = 0,
) -> list[PlannedCard]:
    """Draw hold-out examples whose label is surely right, and show them with another one.

    Classes take turns; of each, verified ones come first, then those that the run doubts least, below 2%. The label
    that is shown is the class that the true one is most often labelled as, by the run's noise transition; a random one
    where that is not known. The truth is one of three suggestions, at any place: who takes the first suggestion unseen
    is found out.

    Args:
        sql: answers a SELECT over ``holdout``.
        listed: ids that are on a list; none of them becomes a canary.
        count: how many; fewer where there are not as many.
        num_classes: of the run.
        transition: ``[C, C]``, share of each true class (rows) that is labelled as each class.
        seed: of the draw.
    """
    present = sql("select * from holdout limit 0").column_names
    p = "p_mislabeled" if "p_mislabeled" in present else "null::double"
    rows = sql(
        f"select id, given_label, coalesce(trusted, false) as is_verified, {p} as p from holdout "
        f"where given_label >= 0 and (coalesce(trusted, false) or coalesce({p}, 1) < {_SURELY_RIGHT}) "
        "and id::varchar not in (select unnest($listed::varchar[])) "
        "order by row_number() over (partition by given_label order by is_verified desc, "
        f"case when is_verified then 0 else coalesce({p}, 1) end, md5($seed || '/' || id::varchar)), "
        "md5($seed || '/' || given_label::varchar) limit $count",
        listed=[str(value) for value in listed],
        seed=str(seed),
        count=count,
    ).to_pylist()
    # where hold-out and training count their ids alike, a decision on one could be taken for one on the other
    both = sql(
        "select id::varchar as id from examples where id::varchar in (select unnest($ids::varchar[]))",
        ids=[str(row["id"]) for row in rows],
    )["id"].to_pylist()
    rng = np.random.default_rng([seed, 2])
    shares, taken = _shares(transition, num_classes), set(both)
    return [_canary(row, shares, num_classes, rng) for row in rows if num_classes > 1 and str(row["id"]) not in taken]


def _canary(
    row: Mapping[str, Any], shares: NDArray[np.float64], num_classes: int, rng: np.random.Generator
) -> PlannedCard:
    truth = int(row["given_label"])
    others = rng.permutation([label for label in range(num_classes) if label != truth])
    likely = others[np.argsort(-shares[truth, others], kind="stable")] if truth < len(shares) else others
    suggested = [truth, *likely[1:3].tolist()]
    return PlannedCard(
        row["id"],
        int(likely[0]),
        tuple(int(label) for label in rng.permutation(suggested)),
        None,
        CANARY,
        truth=truth,
        p=_number(row["p"]),
        source="holdout",
    )


def _shares(transition: ArrayLike | None, num_classes: int) -> NDArray[np.float64]:
    found = np.asarray([] if transition is None else transition, dtype=np.float64)
    if found.shape != (num_classes, num_classes):
        return np.zeros((0, 0))
    return np.nan_to_num(found)


def _suggested(labels: Iterable[Any]) -> tuple[int, ...]:
    return tuple(int(label) for label in labels if label is not None and label >= 0)


def _number(value: Any) -> float | None:
    return None if value is None or value != value else float(value)
