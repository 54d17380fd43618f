"""Which class is mistaken for which: an estimate of the noise transition, ``T[c, c'] = P(given c' | true c)``.

A network trained on noisy labels predicts them: its mean prediction on the hold-out examples of a class leaks to where
that class's labels leak. It also leaks to where the network is merely unsure.
"""

from __future__ import annotations

import numpy as np

from sgoif.errors import SgoifError
from sgoif.types import Floats, Ints

__all__ = ["estimate_transition"]


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
