"""What a review found: how people agree, how good the list was, and how many labels of the whole set are wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from sgoif.findings.suspects import labels_of
from sgoif.review.decisions import Decision, latest
from sgoif.review.estimate import (
    ErrorRate,
    Recalibrated,
    Unlisted,
    count_left_over,
    error_rate,
    recalibrate_cards,
    wilson,
)
from sgoif.review.manifest import Settled
from sgoif.review.plan import FLAGGED, RANDOM, PlannedCard, ReviewPlan

if TYPE_CHECKING:
    from sgoif.store import RunFiles

__all__ = [
    *("Agreement", "CanaryScore", "Precision", "ReviewResults", "agreement", "canaries_of", "canary_scores"),
    *("cohen_kappa", "review_results"),
]

Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Agreement:
    """Cohen's kappa over the cards that people share; the mean over pairs of people. NaN where it says nothing."""

    kappa: float
    num_shared: int  # cards that two people or more decided
    num_pairs: int


@dataclass(frozen=True, slots=True)
class CanaryScore:
    """How often one person saw through cards with a label that is known to be wrong; a 90% interval."""

    num_right: int
    num_shown: int
    low: float
    high: float


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
    error_rate: ErrorRate | None  # of what the run's totals are about; None where the run has no probabilities


def canaries_of(plans: Sequence[ReviewPlan]) -> dict[Key, int]:
    """True class of every canary of some plans, by example and shown label."""
    return {key: truth for plan in plans for key, truth in plan.truths.items()}


def _list_cards(settled: Settled, plans: Sequence[ReviewPlan]) -> list[PlannedCard]:
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
    files: RunFiles,
    info: Mapping[str, Any],
    decisions: Sequence[Decision],
    settled: Settled,
    plans: Sequence[ReviewPlan] = (),
) -> ReviewResults:
    """Judge a review; without plans there is no random sample and there are no canaries."""
    verdicts = {(item.outcome.id, item.outcome.given_label): item.outcome.is_wrong for item in settled.applied}
    cards = _list_cards(settled, plans)
    on_list = [verdicts[card.key] for card in cards if verdicts.get(card.key) is not None]
    hits = sum(bool(value) for value in on_list)
    listed = _recalibrate(cards, verdicts)
    return ReviewResults(
        num_decisions=dict(sorted(Counter(item.reviewer for item in latest(decisions)).items())),
        agreement=agreement(decisions),
        canaries=canary_scores(decisions, canaries_of(plans)),
        precision=Precision(hits / len(on_list), *wilson(hits, len(on_list)), len(on_list)) if on_list else None,
        num_undecided=len(cards) - len(on_list),
        left_over=count_left_over(listed) if np.isfinite(listed.p[~listed.is_decided]).any() else None,
        error_rate=_error_rate(files, info, cards, verdicts, plans),
    )


def _recalibrate(cards: Sequence[PlannedCard], verdicts: Mapping[Key, bool | None]) -> Recalibrated:
    found = {i: is_wrong for i, card in enumerate(cards) if (is_wrong := verdicts.get(card.key)) is not None}
    return recalibrate_cards(
        [card.p for card in cards], [(card.given_label, card.suggested[:1]) for card in cards], found
    )


def _error_rate(
    files: RunFiles,
    info: Mapping[str, Any],
    cards: Sequence[PlannedCard],
    verdicts: Mapping[Key, bool | None],
    plans: Sequence[ReviewPlan],
) -> ErrorRate | None:
    """Of the labels that the run's totals are about, see ``labels_of``."""
    mine = [card for card in cards if card.source == "train"]
    rest = files.sql(
        "select count(*) as n, count(p_mislabeled) as judged, coalesce(sum(p_mislabeled), 0) as p, "
        f"coalesce(sum(p_mislabeled * (1 - p_mislabeled)), 0) as spread from {labels_of(files.sql)} "
        "where id::varchar not in (select unnest($listed::varchar[]))",
        listed=[str(card.id) for card in mine],
    ).to_pylist()[0]
    listed_ids = {str(card.id) for card in mine}
    sample = {key: card for plan in plans for key, card in plan.of_kind(RANDOM).items() if key[0] not in listed_ids}
    seen = [bool(verdicts[key]) for key in sample if verdicts.get(key) is not None]
    if not seen and not rest["judged"]:
        return None
    return error_rate(
        _recalibrate(mine, verdicts),
        Unlisted(rest["n"], rest["p"], rest["spread"]),
        np.array(seen, dtype=bool),
    )


def cohen_kappa(first: Sequence[Hashable], second: Sequence[Hashable]) -> float:
    """Agreement of two people beyond chance: 1 for all, 0 for as much as chance gives.

    >>> cohen_kappa("aabb", "aabb"), cohen_kappa("aabb", "abab")
    (1.0, 0.0)
    """
    count = len(first)
    if not count:
        return float("nan")
    one, other = Counter(first), Counter(second)
    chance = sum(number * other[key] for key, number in one.items()) / count**2
    observed = sum(a == b for a, b in zip(first, second, strict=True)) / count
    return (observed - chance) / (1 - chance) if chance < 1 else float("nan")


def agreement(decisions: Iterable[Decision]) -> Agreement:
    """Compare all pairs of people on the cards that both decided, by decision and classes together."""
    answers: dict[str, dict[tuple[str, int], Hashable]] = {}
    for item in latest(decisions):
        answers.setdefault(item.reviewer, {})[item.key] = item.answer
    shared: set[tuple[str, int]] = set()
    kappas = []
    for one, other in combinations(answers.values(), 2):
        keys = [key for key in one if key in other]
        shared.update(keys)
        kappas.append(cohen_kappa([one[key] for key in keys], [other[key] for key in keys]))
    known = [value for value in kappas if value == value]
    return Agreement(sum(known) / len(known) if known else float("nan"), len(shared), len(known))


def canary_scores(decisions: Iterable[Decision], truths: Mapping[tuple[str, int], int]) -> dict[str, CanaryScore]:
    """Judge people by canaries: right is to relabel to the truth, or to name several classes with it among them."""
    right: Counter[str] = Counter()
    shown: Counter[str] = Counter()
    for item in latest(decisions):
        if item.key in truths:
            shown[item.reviewer] += 1
            right[item.reviewer] += item.decision in ("relabel", "several") and truths[item.key] in item.labels
    return {name: CanaryScore(right[name], shown[name], *wilson(right[name], shown[name])) for name in sorted(shown)}
