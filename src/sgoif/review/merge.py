"""One outcome per example: what most people say of its label, that they disagree, or what its probability says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sgoif.errors import SgoifError
from sgoif.findings.suspects import has_probabilities, suspects
from sgoif.review.decisions import WRONG, Decision, by_example, latest

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Merged", "Outcome", "add_automatic", "merge"]

_MACHINE = "sgoif"  # the reviewer of what nobody looked at


@dataclass(frozen=True, slots=True)
class Outcome:
    """What becomes of one example's label."""

    id: str
    given_label: int
    action: str  # a kind of decision
    labels: tuple[int, ...] = ()
    reviewers: tuple[str, ...] = ()
    decided_at: str = ""
    note: str = ""
    content: str = ""
    is_disputed: bool = False
    completion: str = ""  # the corrected one, of a sequence that was edited

    @property
    def label(self) -> int | None:
        """The label from now on; none where the example goes. Of several classes, the given one stays."""
        if self.action == "relabel":
            return self.labels[0]
        return None if self.action in ("drop", "none") else self.given_label

    @property
    def is_automatic(self) -> bool:
        """Whether nobody looked at it."""
        return self.reviewers == (_MACHINE,)

    @property
    def is_wrong(self) -> bool | None:
        """Whether the given label is wrong; None where people could not tell."""
        return None if self.action == "unsure" else self.action in WRONG


@dataclass(frozen=True, slots=True)
class Merged:
    """Outcomes of a review, and what they were made from."""

    outcomes: tuple[Outcome, ...]
    reviewers: tuple[str, ...]
    list_ids: tuple[str, ...]
    num_decisions: int
    num_canaries: int = 0  # decisions on cards that were there to judge the reviewer


def merge(decisions: Iterable[Decision], canaries: Collection[tuple[str, int]] = ()) -> Merged:
    """Merge the decisions of all people: a strict majority wins, else the example stays as given and is disputed.

    Of each person, the last decision on an example counts. Cards that were not meant seriously are left out.
    """
    last = latest(decisions)
    serious = [item for item in last if item.key not in canaries]
    return Merged(
        outcomes=tuple(_outcome(votes) for votes in by_example(serious).values()),
        reviewers=tuple(sorted({item.reviewer for item in last})),
        list_ids=tuple(sorted({item.list_id for item in last if item.list_id})),
        num_decisions=len(last),
        num_canaries=len(last) - len(serious),
    )


def _outcome(votes: Sequence[Decision]) -> Outcome:
    answers = Counter((item.answer, item.completion) for item in votes)
    ((action, labels), completion), count = answers.most_common(1)[0]
    is_disputed = 2 * count <= len(votes)
    contents = {item.content for item in votes}
    return Outcome(
        id=votes[0].id,
        given_label=votes[0].given_label,
        action="unsure" if is_disputed else action,
        labels=() if is_disputed else labels,
        reviewers=tuple(sorted(item.reviewer for item in votes)),
        decided_at=max(item.decided_at for item in votes),
        note="; ".join(dict.fromkeys(item.note for item in votes if item.note)),
        content=contents.pop() if len(contents) == 1 else "",
        is_disputed=is_disputed,
        completion="" if is_disputed else completion,
    )


def add_automatic(
    merged: Merged, sql: Callable[..., pa.Table], *, relabel_from: float | None = None, drop_from: float | None = None
) -> Merged:
    """Settle every label that is at least so probably wrong, unless people have decided on it.

    Args:
        merged: what people decided.
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
    known = {(item.id, item.given_label) for item in merged.outcomes}
    added = []
    for ident, given, suggested, p in zip(*columns, strict=True):
        if (str(ident), given) in known:
            continue
        if drop_from is not None and p >= drop_from:
            added.append(Outcome(str(ident), given, "drop", reviewers=(_MACHINE,)))
        elif relabel_from is not None and p >= relabel_from and suggested >= 0 and suggested != given:
            added.append(Outcome(str(ident), given, "relabel", (suggested,), reviewers=(_MACHINE,)))
    return replace(merged, outcomes=(*merged.outcomes, *added))
