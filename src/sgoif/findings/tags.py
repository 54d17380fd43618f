"""Which tags are wrong: one row per example and tag, most suspicious first.

A tag that is given and should not be is an *extra tag*; one that is not given and should be is a *missing tag*. Only
pairs that a run kept can be listed: all given tags, and of the others those that the model believed in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SgoifError
from sgoif.findings.label import class_name
from sgoif.findings.suspects import Sql

if TYPE_CHECKING:
    pass

__all__ = ["VERDICTS", "tag_issues"]

VERDICTS = ("missing tag", "extra tag")  # of a tag that is given as 0, as 1
_SHOWN = ("p_wrong", "p_wrong_low", "p_wrong_high", "loss", "harm", "worst", "confidence", "n_visits")


def tag_issues(
    sql: Sql,
    class_names: Sequence[str] = (),
    *,
    top: int | None = None,
    verdict: str | None = None,
    tag: int | None = None,
    min_p: float | None = None,
) -> dict[str, NDArray[Any]]:
    """Make the table of tags, most suspicious first; only the rows that are shown leave DuckDB.

    Args:
        sql: answers a SELECT over a run's tables.
        class_names: of the tags; numbers where there are none.
        top: how many rows; all of them by default.
        verdict: ``"extra tag"`` or ``"missing tag"`` only.
        tag: this tag only.
        min_p: only what is at least this probably wrong.

    Raises:
        SgoifError: the run is not about tags, or there is no such verdict.
    """
    if verdict is not None and verdict not in VERDICTS:
        raise SgoifError(f"verdict must be one of {', '.join(VERDICTS)}, got {verdict!r}.")
    where: list[str] = []
    if verdict is not None:
        where.append("given" if verdict == VERDICTS[1] else "not given")
    where += [] if tag is None else [f"tag = {int(tag)}"]
    where += [] if min_p is None else [f"p_wrong >= {float(min_p)}"]
    limit = "" if top is None else f" limit {int(top)}"
    # without canaries there is no probability, and the loss of the given bit is the best guess
    order = "p_wrong desc nulls last, loss desc nulls last, id, tag"
    table = sql(
        f"select id, tag, given, {', '.join(_SHOWN)} from tags {'where ' + ' and '.join(where) if where else ''} "
        f"order by {order}{limit}"
    )
    rows = {name: table[name].to_numpy(zero_copy_only=False) for name in table.column_names}
    given = rows.pop("given").astype(bool)
    names = np.array([class_name(int(label), class_names) for label in rows["tag"]], dtype=object)
    said = np.array(VERDICTS, dtype=object)[given.astype(np.int64)]
    return {"id": rows.pop("id"), "tag": rows.pop("tag"), "tag_name": names, "verdict": said, **rows}
