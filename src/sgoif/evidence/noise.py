"""A model of the label noise: which class is given for which, beside a classifier that knows the true ones.

With ``T[c, g] = P(given g | true c)`` and ``P(true c | input)`` from a classifier, Bayes says what the true class is
once the given one is known, and so how likely the given one is wrong. Both are learnt from noisy labels alone, in turn
(EM): a classifier is trained so that its predictions *through* ``T`` fit the given labels; what it then says of
examples that it was not trained on re-estimates ``T``. The start is
:func:`sgoif.evidence.transition.sure_transition`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.evidence.transition import sure_transition

__all__ = ["NoiseModel"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Probabilities = NDArray[np.floating[Any]]  # [N, C]

_FLOOR = 1e-3  # of a probability that the inverse made negative
_TINY = 1e-6
_MOST_LOST = 0.2


@dataclass(frozen=True, slots=True)
class NoiseModel:
    """Which class is given for which.

    >>> model = NoiseModel(np.array([[0.6, 0.4], [0.0, 1.0]]))
    >>> posterior = model.posterior(np.array([[0.9, 0.1], [0.1, 0.9]]), np.array([1, 1]))
    >>> posterior.round(2).tolist()  # both are given class 1; the first is more likely of class 0
    [[0.78, 0.22], [0.04, 0.96]]
    """

    transition: Floats  # [C, C]

    @classmethod
    def start(cls, probabilities: Probabilities) -> NoiseModel:
        """Read it off where a classifier that was trained on the given labels as they are is surest."""
        return cls(sure_transition(np.asarray(probabilities, dtype=np.float64)))

    def plausible(self) -> NoiseModel | None:
        """Take classes that are given another label more often than their own for noiseless: nothing is known of them.

        None where these are more than a fifth of all.
        """
        lost = self._lost()
        if lost.mean() > _MOST_LOST:
            return None
        return NoiseModel(np.where(lost[:, None], np.eye(len(lost)), self.transition))

    def tempered(self) -> NoiseModel | None:
        """Let no class be given another label more often than its own: what it leaks shrinks until the two are even.

        For estimates that may be a little too strong, where taking the class for noiseless would lose all its errors.
        None where these are more than a fifth of all.

        >>> NoiseModel(np.array([[0.4, 0.6], [0.0, 1.0]])).tempered() is None
        True
        """
        lost = self._lost()
        if lost.mean() > _MOST_LOST:
            return None
        leaks = self.transition * (1 - np.eye(len(lost)))
        scale = np.where(lost, 1 / np.maximum(leaks.sum(axis=1) + leaks.max(axis=1), _TINY), 1.0)
        kept = leaks * scale[:, None]
        return NoiseModel(kept + np.diag(1 - kept.sum(axis=1)))

    def _lost(self) -> NDArray[np.bool_]:
        """Which classes are given another label more often than their own."""
        return np.asarray(self.transition.argmax(axis=1) != np.arange(len(self.transition)))

    def concentrated(self) -> NoiseModel:
        """Shrink what a weak classifier's confusion adds to the leaks of each class.

        Where the leaks of a class above twice their mean hold most of what it loses, the others shrink to a tenth.
        Evenly spread leaks, as of symmetric noise, stay.
        """
        size = len(self.transition)
        leaks = self.transition * (1 - np.eye(size))
        lost = leaks.sum(axis=1, keepdims=True)
        strong = leaks > 2 * lost / max(size - 1, 1)
        is_told_apart = (leaks * strong).sum(axis=1, keepdims=True) > lost / 2
        kept = np.where(is_told_apart & ~strong, 0.1 * leaks, leaks)
        return NoiseModel(kept + np.diag(1 - kept.sum(axis=1)))

    def undo(self, probabilities: Probabilities) -> Floats:
        """Turn predictions of the given class into predictions of the true one: ``p T⁻¹``, kept positive."""
        found = np.clip(np.asarray(probabilities) @ np.linalg.pinv(self.transition), _FLOOR, None)
        return np.asarray(found / found.sum(axis=1, keepdims=True))

    def posterior(self, probabilities: Probabilities, given_label: Ints) -> Floats:
        """Compute ``P(true | input, given)``, ``[N, C]``, from ``P(true | input)``."""
        joint = np.asarray(probabilities, dtype=np.float64) * self.transition[:, given_label].T
        return np.asarray(joint / np.maximum(joint.sum(axis=1, keepdims=True), 1e-300))

    def log_odds(self, probabilities: Probabilities, label: Ints) -> Floats:
        """Compute the log odds that a label is wrong, ``[N]``, from ``P(true | input)``."""
        right = self.posterior(probabilities, label)[np.arange(len(label)), label].clip(_TINY, 1 - _TINY)
        return np.asarray(np.log1p(-right) - np.log(right))

    def updated(self, posterior: Floats, given_label: Ints) -> NoiseModel:
        """Count anew, from ``P(true | input, given)``; a class that no example belongs to keeps its row."""
        joint = np.zeros_like(self.transition)
        np.add.at(joint.T, given_label, posterior)
        mass = joint.sum(axis=1, keepdims=True)
        return NoiseModel(np.where(mass > _TINY, joint / np.maximum(mass, _TINY), self.transition))
