"""Predictions as far as a run keeps them: the given class, three others, and all the rest as if it were one class.

That is enough for a posterior under any model of the noise, at the same cost whatever the number of classes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sgoif.evidence.likely import LikelyOthers
from sgoif.evidence.logistic import sigmoid
from sgoif.types import Floats, Ints

__all__ = ["KeptPredictions"]


_TRACE = 1e-6  # of every class that is named, so that Bayes can say something of it
_SURE = 1e-9


@dataclass(frozen=True, slots=True)
class KeptPredictions:
    """What a network says of some examples, with their given labels.

    >>> others = LikelyOthers(np.array([[2, -1, -1]]), np.array([[0.3, 0.0, 0.0]]))
    >>> kept = KeptPredictions.of(np.array([0.5]), np.array([0]), others, num_classes=4)
    >>> kept.labels.tolist(), kept.p.round(2).tolist()
    ([[0, 2, -1, -1]], [[0.5, 0.3, 0.0, 0.0, 0.2]])
    """

    labels: Ints  # the given class, then up to three others, [N, 4]; -1 for none
    p: Floats  # of these, and of all other classes together, [N, 5]
    num_classes: int

    @classmethod
    def of(cls, p_given: Floats, given: Ints, others: LikelyOthers, num_classes: int) -> KeptPredictions:
        """From mean probabilities of the given class and of the runners-up."""
        labels = np.column_stack([given, others.labels]).astype(np.int64)
        named = np.where(labels[:, 1:] >= 0, np.maximum(others.probabilities, _TRACE), 0.0)
        left = np.maximum(1 - p_given - named.sum(1), _TRACE)
        p = np.column_stack([np.maximum(p_given, _SURE), named, left])
        p[:, 4] *= (labels >= 0).sum(1) < num_classes  # where every class has a name, there is no rest
        return cls(labels, p / p.sum(1, keepdims=True), num_classes)

    @property
    def given(self) -> Ints:
        """The given labels, ``[N]``."""
        return np.asarray(self.labels[:, 0])

    def some(self, part: slice) -> KeptPredictions:
        """Those of some examples."""
        return replace(self, labels=self.labels[part], p=self.p[part])

    def with_margin(self, margin: Floats) -> KeptPredictions:
        """The same with the odds of the given class against all others taken from its mean margin.

        A mean of margins ranks wrong labels better than a mean of probabilities, in which sure visits count alike.
        """
        own = sigmoid(margin).clip(_SURE, 1 - _SURE)
        others = self.p[:, 1:] / np.maximum(self.p[:, 1:].sum(1, keepdims=True), _SURE)
        return replace(self, p=np.column_stack([own, others * (1 - own)[:, None]]))

    def lowered(self, by: float) -> KeptPredictions:
        """The same with the log odds of the given class so much lower."""
        p = self.p * np.array([np.exp(-by), 1, 1, 1, 1])
        return replace(self, p=p / p.sum(1, keepdims=True))

    def most_probable(self) -> tuple[Ints, Floats]:
        """The most probable class with a name, and its probability, ``[N]`` each."""
        rows, best = np.arange(len(self.p)), self.p[:, :4].argmax(1)
        return self.labels[rows, best], self.p[rows, best]

    def joint(self, transition: Floats, *, steps: int = 10) -> Floats:
        """``P(true, given | input)`` of the classes with a name and of the rest, ``[N, 5]``.

        Predictions of the given class become predictions of the true one first, as by
        :func:`sgoif.evidence.counts.recover_true`.

        Args:
            transition: ``P(given | true)``, ``[C, C]``.
            steps: of expectation-maximisation; 0 takes the predictions as those of the true class.
        """
        among = self._among(transition)
        true = self.p
        for _ in range(steps):
            through = np.maximum(np.einsum("ni,nij->nj", true, among), _SURE)
            true = true * np.einsum("nj,nij->ni", self.p / through, among)
            true = true / true.sum(1, keepdims=True)
        return np.asarray(true * among[:, :, 0])

    def _among(self, transition: Floats) -> Floats:
        """The transition between the classes with a name and the rest of each example, ``[N, 5, 5]``."""
        is_named = self.labels >= 0
        labels = np.where(is_named, self.labels, 0)
        named = transition[labels[:, :, None], labels[:, None, :]] * is_named[:, :, None] * is_named[:, None, :]
        num_left = self.num_classes - is_named.sum(1)
        found = np.zeros((len(labels), 5, 5))
        found[:, :4, :4] = named
        found[:, :4, 4] = (1 - named.sum(2)).clip(0) * is_named
        into = (transition.sum(0)[labels] - named.sum(1)).clip(0) * is_named
        found[:, 4, :4] = into / np.maximum(num_left, 1)[:, None]
        found[:, 4, 4] = 1 - found[:, 4, :4].sum(1)
        return found
