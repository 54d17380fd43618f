"""What people decided before: it is not asked again, and what it says about the other labels is believed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sgoif.pictures import Pictures
from sgoif.report.cards import Card
from sgoif.report.gallery import content_hashes
from sgoif.review.decisions import Decision, by_example, find_past
from sgoif.review.estimate import recalibrate_cards
from sgoif.types import Floats

__all__ = ["apply_past_decisions"]


def apply_past_decisions(cards: Sequence[Card], decisions: Sequence[Decision], place: Pictures | None) -> list[Card]:
    """Leave out cards that were decided on, and correct the others' probabilities by what was decided.

    A decision holds while the example's label and picture are the same. Only pictures of examples that were decided on
    are read for that.

    Args:
        cards: in order of suspicion, those that were decided on among them.
        decisions: of any earlier run.
        place: where pictures are; without, a decision holds by its label alone.
    """
    past = by_example(decisions)
    known = [card for card in cards if (str(card.id), card.given) in past]
    content = content_hashes(place, [card.id for card in known])
    verdicts: dict[int, bool] = {}
    for number, card in enumerate(cards):
        found = find_past(past, card.id, card.given, content.get(str(card.id), ""))
        if found is not None and found.is_wrong is not None:
            verdicts[number] = found.is_wrong
    return [card for number, card in enumerate(_correct(cards, verdicts)) if number not in verdicts]


def _correct(cards: Sequence[Card], verdicts: dict[int, bool]) -> list[Card]:
    """Shift probabilities and their intervals alike; cards stay in their order, which the page makes anew by pairs."""
    if not verdicts or any(card.p is None for card in cards):
        return list(cards)
    p = np.array([card.p for card in cards], dtype=np.float64)
    after = recalibrate_cards(p.tolist(), [(card.given, card.suggested[:1]) for card in cards], verdicts).p
    shift = _logit(after) - _logit(p)
    ends = {
        name: _squash(_logit(np.array([_or(getattr(card, name), card.p) for card in cards])) + shift)
        for name in ("low", "high")
    }
    return [
        replace(
            card,
            p=round(float(after[i]), 4),
            low=None if card.low is None else round(float(ends["low"][i]), 4),
            high=None if card.high is None else round(float(ends["high"][i]), 4),
        )
        for i, card in enumerate(cards)
    ]


def _or(value: float | None, other: float | None) -> float:
    return float(other or 0.0) if value is None else value


def _logit(p: Floats) -> Floats:
    clipped = np.clip(p, 1e-6, 1 - 1e-6)
    return np.asarray(np.log(clipped / (1 - clipped)))


def _squash(x: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-x)))
