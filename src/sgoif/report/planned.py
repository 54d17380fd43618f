"""Cards of a review by several people. Checks look like all others: they borrow what they lack from a card beside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sgoif.report.cards import Card, cards_from
from sgoif.report.findings import Findings
from sgoif.review.draws import draw_canaries, draw_unlisted
from sgoif.review.plan import FLAGGED, PlannedCard, ReviewPlan, make_plan

__all__ = ["cards_of", "plan_review"]

_CANARIES_PER_PERSON = 40  # drawn; a plan takes what it needs


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
    )
    return make_plan(run_name, flagged, unlisted, canaries, reviewers, overlap=overlap, checks=checks, seed=seed)


def cards_of(plan: ReviewPlan, reviewer: str, flagged: Sequence[Card], run: Findings) -> list[Card]:
    """One person's cards. A check has the numbers of the suspicious card before it, and a reason in the same words."""
    known = {(str(card.id), card.given): card for card in flagged}
    found: list[Card] = []
    before = flagged[0]
    for planned in plan.cards[reviewer]:
        if planned.kind == FLAGGED:
            before = known[planned.key]
            found.append(before)
        else:
            found.append(_disguised(planned, before, run))
    return found


def _disguised(planned: PlannedCard, like: Card, run: Findings) -> Card:
    suggested = [label for label in planned.suggested if label != planned.given_label]
    suggested = (suggested or [_confused_with(planned.given_label, run)])[:3]
    padded = [*suggested, -1, -1][:3]
    p = planned.p_shown
    row: dict[str, Any] = {
        "id": planned.id,
        "given_label": planned.given_label,
        **dict(zip(("suggested_label", "suggested_label_2", "suggested_label_3"), padded)),
        **{"p_mislabeled": np.nan if p is None else p, "worst": 1.0, "margin": -1.0, "suggested_share": 0.9},
        **{"confidence": np.nan, "n_visits": like.visits, "source": planned.source},
    }
    card = cards_from({name: _column(value) for name, value in row.items()}, run.class_names)[0]
    if p is None or like.p is None or like.low is None or like.high is None:
        return replace(card, p=p, low=like.low, high=like.high, confidence=like.confidence)
    low, high = max(p + like.low - like.p, 0.0), min(p + like.high - like.p, 1.0)
    return replace(card, low=round(low, 4), high=round(high, 4), confidence=like.confidence)


def _confused_with(label: int, run: Findings) -> int:
    """The class that a label most often stands for by mistake; the next one where the run does not know."""
    shares = np.array(run.info.get("transition") or np.zeros((0, 0)), dtype=np.float64)
    if shares.ndim == 2 and label < len(shares) > 1:
        others = np.nan_to_num(shares[:, label])
        others[label] = -1
        return int(others.argmax())
    return label + 1 if label + 1 < len(run.class_names) else max(label - 1, 0)


def _column(value: Any) -> Any:
    column: Any = np.empty(1, dtype=object if isinstance(value, str) else np.asarray(value).dtype)
    column[0] = value
    return column
