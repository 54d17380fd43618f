"""What a review found: how people agree, how good the list was, and how many labels of the whole set are wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sgoif.review.agreement import Agreement, CanaryScore, agreement, canary_scores
from sgoif.review.decisions import Decision, latest
from sgoif.review.estimate import ErrorRate, Recalibrated, Unlisted, error_rate, left_over, recalibrated, wilson
from sgoif.review.manifest import Settled
from sgoif.review.plan import FLAGGED, RANDOM, PlannedCard, ReviewPlan

if TYPE_CHECKING:
    from sgoif.store import RunFiles

__all__ = ["Precision", "ReviewResults", "canaries_of", "listed_cards", "review_results"]

Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Precision:
    """Share of the decided cards of a list whose label was wrong, with a 90% interval."""

    value: float
    low: float
    high: float
    num_decided: int


@dataclass(frozen=True, slots=True)
class ReviewResults:
    """What a review found."""

    num_decisions: Mapping[str, int]  # by person
    agreement: Agreement
    canaries: Mapping[str, CanaryScore]  # by person
    precision: Precision | None  # None where no card of the list was decided
    num_undecided: int  # cards of the list
    left_over: tuple[float, float] | None  # wrong ones among these: expected number and standard deviation
    error_rate: ErrorRate | None  # of the training examples; None where the run has no probabilities


def canaries_of(plans: Sequence[ReviewPlan]) -> dict[Key, int]:
    """True class of every canary of some plans, by example and shown label."""
    return {key: truth for plan in plans for key, truth in plan.truths.items()}


def listed_cards(settled: Settled, plans: Sequence[ReviewPlan]) -> list[PlannedCard]:
    """The cards of the lists; without a plan, all examples of the run that people decided on."""
    if plans:
        return list({key: card for plan in plans for key, card in plan.of_kind(FLAGGED).items()}.values())
    return [
        PlannedCard(
            item.outcome.id, item.outcome.given_label, (), None, FLAGGED, p=item.p_mislabeled, source=item.source
        )
        for item in settled.applied
    ]


def review_results(
    files: RunFiles, decisions: Sequence[Decision], settled: Settled, plans: Sequence[ReviewPlan] = ()
) -> ReviewResults:
    """Judge a review.

    Args:
        files: of the run.
        decisions: of all people.
        settled: their outcomes, held against the run.
        plans: what the cards were there for; without them there is no random sample and there are no canaries.
    """
    verdicts = {(item.outcome.id, item.outcome.given_label): item.outcome.is_wrong for item in settled.applied}
    cards = listed_cards(settled, plans)
    on_list = [verdicts[card.key] for card in cards if verdicts.get(card.key) is not None]
    hits = sum(bool(value) for value in on_list)
    listed = _recalibrated(cards, verdicts)
    return ReviewResults(
        num_decisions=dict(sorted(Counter(item.reviewer for item in latest(decisions)).items())),
        agreement=agreement(decisions),
        canaries=canary_scores(decisions, canaries_of(plans)),
        precision=Precision(hits / len(on_list), *wilson(hits, len(on_list)), len(on_list)) if on_list else None,
        num_undecided=len(cards) - len(on_list),
        left_over=left_over(listed) if np.isfinite(listed.p[~listed.is_decided]).any() else None,
        error_rate=_error_rate(files, cards, verdicts, plans),
    )


def _recalibrated(cards: Sequence[PlannedCard], verdicts: Mapping[Key, bool | None]) -> Recalibrated:
    found = [verdicts.get(card.key) for card in cards]
    rows = np.array([i for i, value in enumerate(found) if value is not None], dtype=np.int64)
    p = np.array([np.nan if card.p is None else card.p for card in cards], dtype=np.float64)
    pairs = {pair: number for number, pair in enumerate(dict.fromkeys(map(_pair, cards)))}
    pair = np.array([pairs[_pair(card)] for card in cards], dtype=np.int64)
    return recalibrated(p, pair, rows, np.array([bool(found[i]) for i in rows.tolist()], dtype=bool))


def _pair(card: PlannedCard) -> tuple[int, tuple[int, ...]]:
    return card.given_label, card.suggested[:1]


def _error_rate(
    files: RunFiles, cards: Sequence[PlannedCard], verdicts: Mapping[Key, bool | None], plans: Sequence[ReviewPlan]
) -> ErrorRate | None:
    """Of the training examples: the hold-out is not sampled, and small."""
    mine = [card for card in cards if card.source == "train"]
    rest = files.sql(
        "select count(*) as n, count(p_mislabeled) as judged, coalesce(sum(p_mislabeled), 0) as p, "
        "coalesce(sum(p_mislabeled * (1 - p_mislabeled)), 0) as spread from examples "
        "where id::varchar not in (select unnest($listed::varchar[]))",
        listed=[str(card.id) for card in mine],
    ).to_pylist()[0]
    listed_ids = {str(card.id) for card in mine}
    sample = {key: card for plan in plans for key, card in plan.of_kind(RANDOM).items() if key[0] not in listed_ids}
    seen = [bool(verdicts[key]) for key in sample if verdicts.get(key) is not None]
    if not seen and not rest["judged"]:
        return None
    return error_rate(
        _recalibrated(mine, verdicts),
        Unlisted(rest["n"], rest["p"], rest["spread"]),
        np.array(seen, dtype=bool),
    )
