"""Whether a model is right often enough, on examples it was not trained on, for its doubts to mean anything.

A model near chance finds every label as likely as any other: its probabilities promise clean data whatever the data is.
So its accuracy against the labels as given is compared with what guessing reaches, the most frequent class included.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

__all__ = ["Competence", "measure_competence"]

_LEAST_SKILL = 1 / 3  # of the way from guessing to always right
_LEAST_EXPECTED = 0.5  # of the true classes that it must expect to name
_Z = 1.645  # one-sided, 95%


@dataclass(frozen=True, slots=True)
class Competence:
    """How often a model is right on examples that it has not seen, beside what guessing reaches."""

    accuracy: float  # against the labels as given; NaN where no example was seen
    num_examples: int
    chance: float  # of a class drawn at random
    majority: float  # share of the most frequent class among these examples
    skill: float  # (accuracy - guessing) / (1 - guessing), with the better of the two guesses
    is_competent: bool
    expected_accuracy: float | None = None  # for the true classes, by an estimate of the noise; None without one

    @property
    def guessing(self) -> float:
        """The accuracy of the better of the two guesses."""
        return max(self.chance, self.majority)

    @property
    def lower_bound(self) -> float:
        """What the accuracy is at least, with a confidence of 95% (Wilson)."""
        n = max(self.num_examples, 1)
        centre = self.accuracy + _Z**2 / (2 * n)
        spread = _Z * math.sqrt(self.accuracy * (1 - self.accuracy) / n + _Z**2 / (4 * n**2))
        return (centre - spread) / (1 + _Z**2 / n)

    @property
    def most_wrong(self) -> float:
        """The share of labels that may be wrong at most, with a confidence of 95%: those that the model contradicts."""
        return 1 - self.lower_bound

    @property
    def why_not(self) -> str | None:
        """Why such a model cannot judge labels; None where it can."""
        if self.is_competent:
            return None
        if not self.num_examples:
            return "the model was not tried on any held-out example"
        found = (
            f"the model is right on {self.accuracy:.1%} of {self.num_examples:,} held-out examples, "
            f"and guessing is right on {self.guessing:.1%}"
        )
        if self.expected_accuracy is not None and self.expected_accuracy <= _LEAST_EXPECTED:
            return (
                f"the model expects to be right about the true class of {self.expected_accuracy:.1%} of the examples: "
                "it must be right more often than wrong to judge labels"
            )
        if self.skill >= _LEAST_SKILL:
            return f"{found}: with so few examples that may be luck (at least {self.lower_bound:.1%} is sure)"
        needed = self.guessing + _LEAST_SKILL * (1 - self.guessing)
        return f"{found}: at least {needed:.1%} is needed to judge labels"


def measure_competence(
    is_right: NDArray[np.bool_], labels: NDArray[np.int64], num_classes: int, expected_accuracy: float | None = None
) -> Competence:
    """Hold a model's accuracy against guessing.

    It is competent from a third of the way between guessing and always right, if its lower bound is above guessing. A
    model that expects to be wrong about the true class more often than right is not, whatever the labels say.

    Args:
        is_right: whether the model predicts the given label of examples that it was not trained on, ``[m]``.
        labels: the given labels, ``[m]``.
        num_classes: ``C``.
        expected_accuracy: for the true classes, by an estimate of the noise, where there is one.

    >>> found = measure_competence(np.arange(100) < 90, np.arange(100) % 2, 2)
    >>> found.accuracy, found.majority, round(found.skill, 2), found.is_competent
    (0.9, 0.5, 0.8, True)
    """
    count = len(labels)
    accuracy = float(np.mean(is_right)) if count else math.nan
    majority = float(np.bincount(labels).max() / count) if count else math.nan
    chance = 1 / max(num_classes, 1)
    guessing = max(chance, majority) if count else chance
    skill = (accuracy - guessing) / (1 - guessing) if guessing < 1 else 0.0
    found = Competence(accuracy, count, chance, majority, skill, False, expected_accuracy)
    is_competent = bool(skill >= _LEAST_SKILL and found.lower_bound > guessing)  # NaN fails too
    is_competent &= expected_accuracy is None or expected_accuracy > _LEAST_EXPECTED
    return replace(found, is_competent=is_competent)
