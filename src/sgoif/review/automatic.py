"""Cleaning without people: labels that are probably enough wrong take the suggested one, or their examples go.

What people decided stands above it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from sgoif.errors import SgoifError
from sgoif.findings.suspects import has_probabilities, suspects
from sgoif.review.merge import Merged, Outcome

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["MACHINE", "automatic_outcomes", "with_automatic"]

MACHINE = "sgoif"  # the reviewer of what nobody looked at


def automatic_outcomes(
    sql: Callable[..., pa.Table], *, relabel_from: float | None = None, drop_from: float | None = None
) -> list[Outcome]:
    """Settle every label that is at least so probably wrong.

    Args:
        sql: answers a SELECT over a run's tables.
        relabel_from: from this ``p_mislabeled`` on an example gets the suggested label.
        drop_from: from this one on it goes; where both would apply, it goes.

    Raises:
        SgoifError: The run has no probabilities.
    """
    least = min(value for value in (relabel_from, drop_from) if value is not None)
    if not has_probabilities(sql):
        raise SgoifError("this run has no probabilities, so nothing can be cleaned without people looking at it.")
    rows = suspects(sql, min_p=least)
    columns = (rows[name].tolist() for name in ("id", "given_label", "suggested_label", "p_mislabeled"))
    found = []
    for ident, given, suggested, p in zip(*columns, strict=True):
        if drop_from is not None and p >= drop_from:
            found.append(Outcome(str(ident), given, "drop", reviewers=(MACHINE,)))
        elif relabel_from is not None and p >= relabel_from and suggested >= 0 and suggested != given:
            found.append(Outcome(str(ident), given, "relabel", (suggested,), reviewers=(MACHINE,)))
    return found


def with_automatic(merged: Merged, outcomes: list[Outcome]) -> Merged:
    """Add outcomes for examples that nobody decided on."""
    known = {(item.id, item.given_label) for item in merged.outcomes}
    added = tuple(item for item in outcomes if (item.id, item.given_label) not in known)
    return replace(merged, outcomes=merged.outcomes + added)
