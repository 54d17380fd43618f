"""Cards: one example each, with what a person needs to decide about it, and what lies beside it when it is opened.

In a review by several people checks look like the rest: what they lack is drawn from it, or shown of none.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.findings import label_issues
from sgoif.findings.keys import with_neighbours
from sgoif.findings.label import phrase, phrase_kinds, rank_by_suspicion
from sgoif.findings.neighbours import find_harmed_holdout, has_likeness, nearest_examples
from sgoif.findings.suspects import columns_of, has_probabilities, key_without_p, suspects
from sgoif.report.findings import Findings
from sgoif.report.gallery import content_hashes
from sgoif.review.decisions import Decision, by_example, find_past
from sgoif.review.estimate import recalibrate_cards
from sgoif.review.plan import FLAGGED, PlannedCard, ReviewPlan, draw_canaries, draw_unlisted, make_plan
from sgoif.sources import Pictures
from sgoif.summary import read_transition
from sgoif.types import Floats

__all__ = [
    *("Beside", "Card", "Context", "DecidedCard", "apply_past_decisions", "cards_from", "cards_of"),
    *("context_of", "isolate", "plan_review", "select_cards"),
]

_MOST_VISITS = 1_000_000_000  # above, asking for the visits of some examples takes minutes
_CANARIES_PER_PERSON = 40  # drawn; a plan takes what it needs
_NUM_TYPICAL, _NUM_HARMED, _NUM_NEAREST = 3, 3, 6


@dataclass(frozen=True, slots=True)
class Card:
    """One example on the page."""

    id: Any  # the user's own
    given: int
    suggested: tuple[int, ...] = ()  # best first, at most three, without the given class
    p: float | None = None
    low: float | None = None
    high: float | None = None
    confidence: float | None = None
    visits: int = 0
    why: str = ""
    kind: tuple[int, ...] = ()  # of the reason, see `sgoif.findings.label.phrase_kinds`
    source: str = "train"  # or holdout
    probable: tuple[float, ...] = ()  # that each suggestion is the true class; empty where the run does not know


@dataclass(frozen=True, slots=True)
class DecidedCard:
    """A card that was decided on earlier, and the class that was found right; None where no single one was."""

    card: Card
    truth: int | None


@dataclass(frozen=True, slots=True)
class Beside:
    """An example that lies beside a card."""

    id: Any
    label: int


@dataclass(frozen=True, slots=True)
class Context:
    """What is shown of an opened card: each by the text of the card's id, typical examples by class."""

    typical: Mapping[int, Sequence[Beside]] = field(default_factory=dict)
    nearest: Mapping[str, Sequence[Beside]] = field(default_factory=dict)
    harmed: Mapping[str, Sequence[Beside]] = field(default_factory=dict)
    epochs: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)  # epoch, belief in the label, score


def select_cards(run: Findings, *, top: int | None, ids: Sequence[Any] | None = None) -> list[Card]:
    """The most suspicious examples as cards; or those with some ids."""
    return cards_from(with_neighbours(run.sql, suspects(run.sql, top=top, ids=ids)), run.class_names)


def cards_from(rows: Mapping[str, NDArray[Any]], class_names: Sequence[str]) -> list[Card]:
    """Make cards of rows as :func:`sgoif.findings.suspects.suspects` gives them, in order of suspicion."""
    table = label_issues(rows, [isolate(name) for name in class_names])
    kinds = phrase_kinds(rows)[rank_by_suspicion(rows)]
    given, nothing = table["given_label"].tolist(), np.full(len(kinds), np.nan)
    labels = np.stack([table[f"suggested_label{rank}"] for rank in ("", "_2", "_3")], 1).astype(np.int64).tolist()
    suggested = [tuple(dict.fromkeys(s for s in row if s >= 0 and s != own)) for own, row in zip(given, labels)]
    probable = np.stack([table.get(f"p_suggested{rank}", nothing) for rank in ("", "_2", "_3")], 1).tolist()
    known = [
        tuple(round(p[row.index(label)], 4) for label in mine) if p[0] == p[0] else ()
        for mine, row, p in zip(suggested, labels, probable)
    ]
    names = ("p_mislabeled", "p_mislabeled_low", "p_mislabeled_high", "confidence")
    numbers = [[_finite(value) for value in table.get(name, nothing)] for name in names]
    rest = [table["n_visits"].astype(int).tolist(), map(str, table["why"]), map(tuple, kinds.tolist())]
    columns = (table["id"].tolist(), given, suggested, *numbers, *rest, map(str, table["source"]), known)
    return [Card(*row) for row in zip(*columns)]


def apply_past_decisions(
    cards: Sequence[Card], decisions: Sequence[Decision], place: Pictures | None
) -> tuple[list[Card], list[DecidedCard]]:
    """Split off cards that were decided on, and correct the probabilities of all by what was decided.

    A decision holds while the example's label and its picture, text or row are the same. Only examples that were
    decided on are read for that; without a place of examples, a decision holds by its label alone.
    """
    past = by_example(decisions)
    known = [card for card in cards if (str(card.id), card.given) in past]
    content = content_hashes(place, [card.id for card in known])
    verdicts: dict[int, bool] = {}
    truth: dict[int, int | None] = {}
    for number, card in enumerate(cards):
        found = find_past(past, card.id, card.given, content.get(str(card.id), ""))
        if found is not None and found.is_wrong is not None:
            verdicts[number] = found.is_wrong
            truth[number] = {"keep": card.given, "relabel": next(iter(found.labels), None)}.get(found.decision)
    corrected = _correct(cards, verdicts)
    done = [DecidedCard(corrected[number], label) for number, label in truth.items()]
    return [card for number, card in enumerate(corrected) if number not in verdicts], done


def context_of(run: Findings, cards: Sequence[Card], *, blind: bool = False, secret: bool = False) -> Context:
    """Find what lies beside the cards of a page: where it is blind, typical examples of the given class alone.

    Where it is secret, checks and suspicious labels have the same things beside them: typical examples and neighbours.
    """
    shown = {card.given for card in cards}
    if blind:
        return Context(typical=_typical(run, shown))
    shown |= {card.suggested[0] for card in cards if card.suggested}
    ids = [card.id for card in cards]
    found = Context(typical=_typical(run, shown))
    if has_likeness(run.sql):
        found = replace(found, nearest=_group(nearest_examples(run.sql, ids, count=_NUM_NEAREST)))
    if secret:
        return found
    found = replace(found, epochs=_epochs(run, ids))
    if not found.nearest:
        return found
    return replace(found, harmed=_group(find_harmed_holdout(run.sql, ids, count=_NUM_HARMED)))


def isolate(name: str) -> str:
    """Keep a name that is written from right to left from turning the words around it."""
    runs_back = any(unicodedata.bidirectional(c) in ("R", "AL", "RLO", "RLE", "LRO", "LRE") for c in name)
    return f"\u2068{name}\u2069" if runs_back else name


def _typical(run: Findings, classes: set[int]) -> dict[int, list[Beside]]:
    """The examples of each class whose labels are least in doubt."""
    key = "p_mislabeled" if has_probabilities(run.sql) else key_without_p(run.sql)
    table = run.sql(
        f"select given_label as label, arg_min(id, {key}, {_NUM_TYPICAL}) as ids from examples "
        f"where {key} is not null and given_label in (select unnest($classes)) group by given_label",
        classes=sorted(classes),
    )
    rows = zip(table["label"].to_pylist(), table["ids"].to_pylist())
    return {label: [Beside(ident, label) for ident in ids] for label, ids in rows}


def _group(table: Any) -> dict[str, list[Beside]]:
    found: dict[str, list[Beside]] = {}
    columns = (table[name].to_pylist() for name in ("id", "other_id", "given_label"))
    for ident, other, label in zip(*columns):
        found.setdefault(str(ident), []).append(Beside(other, label))
    return found


def _epochs(run: Findings, ids: Sequence[Any]) -> dict[str, list[list[float]]]:
    """How far the model believed the given label in each epoch, where visits were kept and there are several."""
    present = columns_of(run.sql, "visits")
    if not {"epoch", "p_given", "worst_std"} <= set(present):
        return {}
    if run.sql("select count(*) as n from visits")["n"][0].as_py() > _MOST_VISITS:
        return {}
    table = run.sql(
        "select id::varchar as id, epoch, avg(p_given) as belief, avg(worst_std) as score from visits "
        "where id::varchar in (select unnest($ids)) group by all order by id, epoch",
        ids=[str(ident) for ident in ids],
    )
    found: dict[str, list[list[float]]] = {}
    for row in table.to_pylist():
        belief, score = _finite(row["belief"]), _finite(row["score"])
        if belief is not None:
            found.setdefault(row["id"], []).append([row["epoch"], belief, score or 0.0])
    return {ident: rows for ident, rows in found.items() if len(rows) > 1}


def _finite(value: Any) -> float | None:
    return None if value is None or not np.isfinite(value) else round(float(value), 4)


def _correct(cards: Sequence[Card], verdicts: dict[int, bool]) -> list[Card]:
    """Shift probabilities and their intervals alike; cards stay in their order, which the page makes anew by pairs."""
    if not verdicts or any(card.p is None for card in cards):
        return list(cards)
    p = np.array([card.p for card in cards], dtype=np.float64)
    pairs = [(card.given, card.suggested[:1]) for card in cards]
    after = recalibrate_cards(p.tolist(), pairs, verdicts).p_shifted
    shift = _logit(after) - _logit(p)

    def correct(value: float | None, by: float) -> float | None:
        return None if value is None else round(float(1 / (1 + np.exp(-(_logit(np.array(value)) + by)))), 4)

    return [
        replace(
            card,
            p=round(float(now), 4),
            low=correct(card.low, by),
            high=correct(card.high, by),
            # if the label is wrong, the classes are as probable as before
            probable=tuple(round(min(value * float(now) / max(before, 1e-6), 1.0), 4) for value in card.probable),
        )
        for card, by, before, now in zip(cards, shift, p.tolist(), after)
    ]


def _logit(p: Floats) -> Floats:
    clipped = np.clip(p, 1e-6, 1 - 1e-6)
    return np.asarray(np.log(clipped / (1 - clipped)))


def plan_review(
    run: Findings,
    run_name: str,
    cards: Sequence[Card],
    reviewers: Sequence[str],
    *,
    overlap: float,
    checks: float,
    seed: int,
) -> ReviewPlan:
    """Deal cards to people, with random examples and canaries among them."""
    listed = [card.id for card in cards]
    flagged = [
        PlannedCard(card.id, card.given, card.suggested, card.p, FLAGGED, p=card.p, source=card.source)
        for card in cards
    ]
    unlisted = draw_unlisted(run.sql, listed, round(checks * len(cards)), seed)
    canaries = draw_canaries(
        run.sql,
        [*listed, *(card.id for card in unlisted)],
        _CANARIES_PER_PERSON * len(reviewers),
        num_classes=max(len(run.class_names), len(run.info.get("held_out_per_class") or ())),
        transition=run.info.get("transition"),
        seed=seed,
        has_holdout=run.info.get("kind") != "scan",
    )
    return make_plan(run_name, flagged, unlisted, canaries, reviewers, overlap=overlap, checks=checks, seed=seed)


def cards_of(plan: ReviewPlan, reviewer: str, flagged: Sequence[Card], run: Findings) -> list[Card]:
    """One person's cards, under names that tell nothing.

    What a check lacks is drawn from suspicious cards, each part from another one: two parts of the same card together
    would tell where they come from. Reasons leave out neighbours and the hold-out, in which checks differ.
    """
    names = [isolate(name) for name in run.class_names]
    known = {(str(card.id), card.given): _without_neighbours(card, names) for card in flagged}
    rng = np.random.default_rng([int(plan.list_id, 16) % 2**32, len(reviewer), *reviewer.encode()])
    return [
        known[planned.key] if planned.kind == FLAGGED else _disguise(planned, flagged, run, rng)
        for planned in plan.cards[reviewer]
    ]


def _without_neighbours(card: Card, names: Sequence[str]) -> Card:
    if not card.kind or not card.suggested:
        return card
    return replace(card, why=phrase(card.given, card.suggested[0], card.kind, names))


def _disguise(planned: PlannedCard, flagged: Sequence[Card], run: Findings, rng: np.random.Generator) -> Card:
    def draw() -> Card:
        return flagged[int(rng.integers(len(flagged)))]

    suggested = _suggest(planned, max(len(draw().suggested), 1), run)
    kind, p = draw().kind, planned.p_shown
    why = phrase(planned.given_label, suggested[0], kind, [isolate(name) for name in run.class_names])
    shown, probable = None if p is None else round(p, 4), draw().probable
    probable = (*probable, 0.0, 0.0)[: len(suggested)] if probable else ()
    return Card(
        planned.id,
        planned.given_label,
        suggested,
        shown,
        why=why,
        kind=kind,
        source=planned.source,
        probable=probable,
    )


def _suggest(planned: PlannedCard, count: int, run: Findings) -> tuple[int, ...]:
    """As many suggestions as others have; the truth of a canary is always among them."""
    others = [label for label in planned.suggested if label != planned.given_label]
    others = others or [_find_confused(planned.given_label, run)]
    if planned.truth is not None and planned.truth not in others[:count]:
        others = [planned.truth, *(label for label in others if label != planned.truth)]
    return tuple(others[:count])


def _find_confused(label: int, run: Findings) -> int:
    """The class that a label most often stands for by mistake; the next one where the run does not know."""
    shares = read_transition(run.info)
    if label < len(shares) > 1:
        others = np.nan_to_num(shares[:, label])
        others[label] = -1
        return int(others.argmax())
    return label + 1 if label + 1 < len(run.class_names) else max(label - 1, 0)
