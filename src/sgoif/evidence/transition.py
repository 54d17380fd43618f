"""Which class is mistaken for which: estimates of the noise transition, ``T[c, c'] = P(given c' | true c)``.

The hold-out gives a first estimate, since a network trained on noisy labels predicts them: its mean prediction on the
examples of a class leaks to where that class's labels leak. It also leaks to where the network is merely unsure. The
second estimate counts what was *found* among the training examples and knows the noise rate itself; see
:func:`transition_from_scores` for what that is worth.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SgoifError

__all__ = ["concentration", "estimate_transition", "transition_from_scores"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def estimate_transition(probabilities: Floats, labels: Ints, weights: Floats | None = None) -> Floats:
    """Average the predictions over each class's hold-out examples: ``[C, C]``, rows sum to one.

    A class without believed examples gets the identity's row: nothing is known of its leaks.

    >>> estimate_transition(np.array([[0.8, 0.2], [0.3, 0.7]]), np.array([0, 1])).tolist()
    [[0.8, 0.2], [0.3, 0.7]]
    """
    num_classes = probabilities.shape[1]
    known = np.asarray(np.isfinite(probabilities).all(axis=1))
    w = known * (np.ones(len(labels)) if weights is None else np.asarray(weights, dtype=np.float64))
    if w.shape != labels.shape or not (w >= 0).all():
        raise SgoifError(f"weights must be {len(labels)} numbers >= 0, got shape {w.shape}.")
    total = np.zeros((num_classes, num_classes))
    np.add.at(total, labels, np.where(known[:, None], probabilities, 0.0) * w[:, None])
    mass = total.sum(axis=1, keepdims=True)
    return np.where(mass > 0, total / np.where(mass > 0, mass, 1.0), np.eye(num_classes))


def transition_from_scores(p_mislabeled: Floats, suggested: Ints, given_label: Ints, num_classes: int) -> Floats:
    """Estimate the transition from scored training examples: expected errors per (suggested, given) pair.

    ``J[c, c'] = Σ p_i`` over examples given c' and suggested c, divided by the expected number of examples that truly
    are c. On the development set of 20,000 CIFAR-10 images with a trusted hold-out (one training run, two draws of the
    folds), canaries weighted by it instead of by the network's confusion raised the AP on pair noise from 73 to 79,
    left human `worst` (88) and symmetric noise (93) where they were, and cost 1 on human `aggre` (64.0 to 63.0, 65.0 to
    64.1). On pair noise the expected precision of the top 1, 5, 10% went from 94, 85, 74 (true 90, 89, 81) to 98, 95,
    89 (true 98, 95, 87), and the expected share of errors from 14% to 19% (true 20%).

    Args:
        p_mislabeled: ``[N]``.
        suggested: Class of the worst anchor, ``[N]``; -1 adds to no pair.
        given_label: ``[N]``.
        num_classes: ``C``.

    >>> transition_from_scores(np.array([1.0, 0.0, 0.0]), np.array([1, 0, 0]), np.array([0, 1, 1]), 2).round(2).tolist()
    [[1.0, 0.0], [0.33, 0.67]]
    """
    usable = (suggested >= 0) & np.isfinite(p_mislabeled) & (suggested != given_label)
    p = np.where(usable, p_mislabeled, 0.0)
    pairs = np.bincount(
        np.where(usable, suggested, 0) * num_classes + given_label, weights=p, minlength=num_classes**2
    ).reshape(num_classes, num_classes)
    kept = np.bincount(given_label, weights=1 - p, minlength=num_classes)
    joint = pairs + np.diag(kept)
    mass = joint.sum(axis=1, keepdims=True)
    return np.where(mass > 0, joint / np.where(mass > 0, mass, 1.0), np.eye(num_classes))


def concentration(transition: Floats) -> float:
    """Compute how far leaks go to one class each: mean share of a row's largest leak, weighted by the leak's mass.

    1 where every class leaks to a single other one, ``1/(C-1)`` where it leaks to all alike.

    >>> concentration(np.array([[0.5, 0.5, 0.0], [0.25, 0.5, 0.25], [0.0, 0.0, 1.0]]))
    0.75
    """
    leaks = transition - np.diag(np.diag(transition))
    mass = leaks.sum()
    return float(leaks.max(axis=1).sum() / mass) if mass > 0 else 1.0
