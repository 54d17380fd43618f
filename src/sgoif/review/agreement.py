"""How far people agree with each other, and with cards whose answer is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from sgoif.review.decisions import Decision, latest
from sgoif.review.estimate import wilson

__all__ = ["Agreement", "CanaryScore", "agreement", "canary_scores", "cohen_kappa"]


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
    """Judge people by canaries: right is to relabel to the truth, or to name several classes with it among them.

    Args:
        decisions: of any number of people.
        truths: true class by example and shown label (``ReviewPlan.truths``).
    """
    right: Counter[str] = Counter()
    shown: Counter[str] = Counter()
    for item in latest(decisions):
        if item.key in truths:
            shown[item.reviewer] += 1
            right[item.reviewer] += item.decision in ("relabel", "several") and truths[item.key] in item.labels
    return {name: CanaryScore(right[name], shown[name], *wilson(right[name], shown[name])) for name in sorted(shown)}
