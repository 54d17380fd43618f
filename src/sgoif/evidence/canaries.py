"""Canaries: hold-out examples under labels known to be right and under labels known to be wrong.

The head sees the hold-out at every refresh anyway, and a label enters the gradient only as ``- e_c``; so each example
can be scored under its own label (a negative) and under others (positives) at no cost. They went through this very run,
so that its training examples can be compared with them. Each is scored against directions made from the *other* fold:
:func:`make_canaries` makes the directions itself and there is no way to hand it others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SgoifError
from sgoif.evidence.crossfit import SIGNALS, cross_fitted_signals, labels_to_try
from sgoif.evidence.holdout import Holdout
from sgoif.types import Floats, Ints

__all__ = ["Canaries", "estimate_transition", "make_canaries"]


@dataclass(frozen=True, slots=True)
class Canaries:
    """A table with one row per hold-out example and label tried."""

    holdout_row: Ints  # [M]
    fold: Ints
    label: Ints  # the hold-out label
    assigned_label: Ints  # the label it was tried under
    belief: Floats  # how far the hold-out label is believed, in [0, 1]
    weight: Floats  # belief, times the transition's entry for a flip
    signals: Floats  # [M, S], raw, averaged over snapshots; columns as SIGNALS
    worst_anchor: Ints
    num_classes: int

    def __len__(self) -> int:
        return len(self.label)

    @property
    def is_flip(self) -> NDArray[np.bool_]:
        """Which rows carry a wrong label."""
        return np.asarray(self.label != self.assigned_label)

    def reweight(self, transition: Floats) -> Canaries:
        """Weight the flips by another transition, ``P(given | true)``, ``[C, C]``."""
        if transition.shape != (self.num_classes, self.num_classes):
            raise SgoifError(f"the transition must be {self.num_classes} x {self.num_classes}, got {transition.shape}.")
        flips = transition[self.label, self.assigned_label]
        return replace(self, weight=self.belief * np.where(self.is_flip, flips, 1.0))

    def take_as_given(self) -> Canaries:
        """Believe every hold-out label that is a negative here: what cleaning doubts counts as right again."""
        return replace(self, weight=np.where(self.is_flip, self.weight, 1.0))


def make_canaries(
    holdout: Holdout,
    weights: Floats | None = None,
    transition: Floats | None = None,
    tried: Ints | None = None,
) -> Canaries:
    """Score the hold-out under its own and under flipped labels, fold against fold.

    Up to 64 classes an example is tried under every label, above under its own and the five most probable others. Flips
    are weighted by the transition, since errors fall on classes that are mistaken for one another: against uniform
    flips that was worth 8-17 AP on pair noise.

    Args:
        holdout: Labels, folds and snapshots.
        weights: How far each label is believed, ``[m]``: ones for trusted labels, else from ``self_clean``.
        transition: ``P(given | true)``, ``[C, C]``; the mean prediction per class if left out.
        tried: Labels to score each example under, ``[m, F]``; found if left out.

    >>> from sgoif.evidence.holdout import Snapshot
    >>> rng = np.random.default_rng(0)
    >>> labels = np.arange(40) % 2
    >>> seen = rng.normal(size=(40, 3)) + labels[:, None]
    >>> snapshot = Snapshot(seen, seen[:, :2] * [-1, 1])
    >>> found = make_canaries(Holdout(labels, np.arange(40) // 2 % 2, 2, [snapshot]))
    >>> len(found), int(found.is_flip.sum())
    (80, 40)
    """
    m = len(holdout)
    belief = np.ones(m) if weights is None else np.asarray(weights, dtype=np.float64)
    if belief.shape != (m,) or not ((belief >= 0) & (belief <= 1)).all():
        raise SgoifError(f"weights must be {m} numbers in [0, 1], got shape {belief.shape}.")
    assigned = labels_to_try(holdout) if tried is None else tried
    scored = cross_fitted_signals(holdout, assigned, belief)
    row = np.repeat(np.arange(m), assigned.shape[1])
    found = Canaries(
        holdout_row=row,
        fold=holdout.fold[row],
        label=holdout.labels[row],
        assigned_label=assigned.reshape(-1).astype(np.int64),
        belief=belief[row],
        weight=belief[row],
        signals=scored.values.reshape(-1, len(SIGNALS)),
        worst_anchor=scored.worst_anchor.reshape(-1),
        num_classes=holdout.num_classes,
    )
    if transition is None:
        transition = estimate_transition(holdout.mean_probabilities(), holdout.labels, belief)
    return found.reweight(transition)


def estimate_transition(probabilities: Floats, labels: Ints, weights: Floats | None = None) -> Floats:
    """Estimate which class is given for which, ``T[c, c'] = P(given c' | true c)``: ``[C, C]``, rows sum to one.

    A network trained on noisy labels predicts them: its mean prediction on the hold-out examples of a class leaks to
    where that class's labels leak. It also leaks to where the network is merely unsure. A class without believed
    examples gets the identity's row: nothing is known of its leaks.

    >>> estimate_transition(np.array([[0.8, 0.2], [0.3, 0.7]]), np.array([0, 1])).tolist()
    [[0.8, 0.2], [0.3, 0.7]]
    """
    num_classes = probabilities.shape[1]
    w = np.ones(len(labels)) if weights is None else np.asarray(weights, dtype=np.float64)
    if w.shape != labels.shape or not (w >= 0).all():
        raise SgoifError(f"weights must be {len(labels)} numbers >= 0, got shape {w.shape}.")
    order = np.argsort(labels, kind="stable")
    order = order[np.isfinite(probabilities.sum(axis=1))[order]]
    total, (found, first) = np.zeros((num_classes, num_classes)), np.unique(labels[order], return_index=True)
    for label, rows in zip(found, np.split(order, first[1:])):  # by class: a copy of all would be as large as they are
        total[label] = w[rows] @ probabilities[rows]
    mass = total.sum(axis=1, keepdims=True)
    return np.where(mass > 0, total / np.where(mass > 0, mass, 1.0), np.eye(num_classes))
