"""Cards of a review by several people. Checks look like the rest: what they lack is drawn from it, or shown of none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sgoif.findings.label import phrase
from sgoif.report.cards import Card, isolate
from sgoif.report.findings import Findings
from sgoif.review.plan import FLAGGED, PlannedCard, ReviewPlan, draw_canaries, draw_unlisted, make_plan
from sgoif.summary import read_transition

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
    """One person's cards, under names that tell nothing.

    What a check lacks is drawn from suspicious cards, each part from another one: two parts of the same card together
    would tell where they come from.
    """
    known = {(str(card.id), card.given): card for card in flagged}
    rng = np.random.default_rng([int(plan.list_id, 16) % 2**32, len(reviewer), *reviewer.encode()])
    return [
        known[planned.key] if planned.kind == FLAGGED else _disguise(planned, flagged, run, rng)
        for planned in plan.cards[reviewer]
    ]


def _disguise(planned: PlannedCard, flagged: Sequence[Card], run: Findings, rng: np.random.Generator) -> Card:
    def draw() -> Card:
        return flagged[int(rng.integers(len(flagged)))]

    suggested = _suggest(planned, max(len(draw().suggested), 1), run)
    kind, p = draw().kind, planned.p_shown
    why = phrase(planned.given_label, suggested[0], kind, [isolate(name) for name in run.class_names])
    shown = None if p is None else round(p, 4)
    return Card(planned.id, planned.given_label, suggested, shown, why=why, kind=kind, source=planned.source)


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
