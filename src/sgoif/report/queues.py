"""Queues of the review page besides suspicious labels: copies under two labels, and outliers, as a scan found them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sgoif.errors import SgoifError
from sgoif.findings import duplicates_of_run
from sgoif.findings.suspects import columns_of
from sgoif.report.cards import Card
from sgoif.report.findings import Findings
from sgoif.report.gallery import content_hashes
from sgoif.review.decisions import Decision, by_example, find_past
from sgoif.sources import Pictures

__all__ = ["Pair", "Queues", "describe_queues", "find_queues"]

log = logging.getLogger(__name__)

_MOST_PAIRS = 100
_GONE = ("drop", "none")


@dataclass(frozen=True, slots=True)
class Pair:
    """Two examples that are the same, or nearly, under two labels."""

    one: Card
    other: Card
    is_same: bool


@dataclass(frozen=True, slots=True)
class Queues:
    """What there is to decide besides suspicious labels."""

    pairs: tuple[Pair, ...] = ()
    num_pairs: int = 0  # that nobody has decided; the page holds the nearest
    outliers: tuple[Card, ...] = ()
    num_outliers: int = 0  # that the run counted; it names the farthest

    @property
    def cards(self) -> list[Card]:
        """All examples of the queues, each once."""
        every = [*(card for pair in self.pairs for card in (pair.one, pair.other)), *self.outliers]
        return list({(str(card.id), card.given): card for card in every}.values())


def find_queues(run: Findings, decisions: Sequence[Decision] = (), place: Pictures | None = None) -> Queues:
    """Find copies under two labels and outliers, where the run was checked for them.

    Copies are looked for only where the checks of a scan counted some: looking takes minutes on millions of examples.

    Args:
        run: a run; one that was not checked has no queues.
        decisions: earlier ones; what they settle is left out.
        place: where examples are, by which one knows whether earlier decisions still hold.
    """
    issues = _read_issues(run)
    found = _find_pairs(run) if (issues.get("conflicting_duplicates", {}).get("count") or 0) > 0 else []
    far = issues.get("outliers", {})
    named = far.get("ids") or ()
    known = _read_cards(run, [*(name for names in found for name in names[:2]), *named])
    pairs = [Pair(known[one], known[other], same) for one, other, same in found if one in known and other in known]
    outliers = [known[name] for name in named if name in known]
    past = _Past.of(decisions, [*(card for pair in pairs for card in (pair.one, pair.other)), *outliers], place)
    pairs = [pair for pair in pairs if not past.settles(pair)]
    left = [card for card in outliers if past.find(card) is None]
    count = (far.get("count") or 0) - (len(outliers) - len(left))
    return Queues(tuple(pairs[:_MOST_PAIRS]), len(pairs), tuple(left), max(count, len(left)) if left else 0)


def describe_queues(queues: Queues, cards: Sequence[Card]) -> tuple[dict[str, Any], list[Card]]:
    """The queues as the page's script has them, examples by number, and the examples that are no cards of the page."""
    number = {(str(card.id), card.given): place for place, card in reversed(list(enumerate(cards)))}
    extras = [card for card in queues.cards if (str(card.id), card.given) not in number]
    number |= {(str(card.id), card.given): len(cards) + place for place, card in enumerate(extras)}

    def place(card: Card) -> int:
        return number[str(card.id), card.given]

    found = {
        "duplicates": {
            "entries": [[place(pair.one), place(pair.other)] for pair in queues.pairs],
            "same": [pair.is_same for pair in queues.pairs],
            "count": queues.num_pairs,
        },
        "outliers": {"entries": [[place(card)] for card in queues.outliers], "count": queues.num_outliers},
    }
    return found, extras


@dataclass(frozen=True, slots=True)
class _Past:
    """Earlier decisions, and the content of the examples that they are about."""

    decisions: Mapping[tuple[str, int], Sequence[Decision]]
    content: Mapping[str, str]

    @classmethod
    def of(cls, decisions: Sequence[Decision], cards: Sequence[Card], place: Pictures | None) -> _Past:
        past = by_example(decisions)
        known = {str(card.id): card.id for card in cards if (str(card.id), card.given) in past}
        return cls(past, content_hashes(place, list(known.values())) if known else {})

    def find(self, card: Card) -> Decision | None:
        """The decision that still holds; none where the person was unsure."""
        found = find_past(self.decisions, card.id, card.given, self.content.get(str(card.id), ""))
        return None if found is None or found.decision == "unsure" else found

    def settles(self, pair: Pair) -> bool:
        """Whether both were decided, one goes, or both have the same label from now on; the page's script agrees."""
        both = [self.find(card) for card in (pair.one, pair.other)]
        if all(both) or any(item is not None and item.decision in _GONE for item in both):
            return True
        labels = [
            item.labels[0] if item is not None and item.decision == "relabel" else card.given
            for item, card in zip(both, (pair.one, pair.other), strict=True)
        ]
        return labels[0] == labels[1]


def _read_issues(run: Findings) -> dict[str, Mapping[str, Any]]:
    """The answers of the scan's checks by kind; none where it made none, or where they are damaged."""
    from sgoif.checks import issue_table

    if not run.info.get("data_issues"):
        return {}
    try:
        return {row["kind"]: row for row in issue_table(run.info).to_pylist()}
    except SgoifError as error:
        log.warning("The page has no queues of duplicates and outliers: %s", error)
        return {}


def _find_pairs(run: Findings) -> list[tuple[str, str, bool]]:
    """Ids of copies under two labels, the nearest first, and whether they are the same."""
    found = duplicates_of_run(run.sql, run.info.get("nearly_same"))
    found = found.filter(found["labels_differ"])
    rows = zip(*(found[name].to_pylist() for name in ("bits_apart", "id", "other_id")), strict=True)
    return [(one, other, bits == 0) for bits, one, other in sorted(rows)]


def _read_cards(run: Findings, names: Sequence[str]) -> dict[str, Card]:
    """Examples by the text of their ids; those of the training set first."""
    found: dict[str, Card] = {}
    for table, source in (("holdout", "holdout"), ("examples", "train")):
        if not names or not {"id", "given_label"} <= set(columns_of(run.sql, table)):
            continue
        rows = run.sql(
            f"select id, id::varchar as name, given_label from {table} "
            "where id::varchar in (select unnest($ids::varchar[])) and given_label >= 0",
            ids=list(dict.fromkeys(names)),
        )
        columns = (rows[name].to_pylist() for name in ("id", "name", "given_label"))
        found |= {name: Card(ident, label, source=source) for ident, name, label in zip(*columns, strict=True)}
    return found
