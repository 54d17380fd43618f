"""A model of the noise read off one network that was trained on the labels it is asked about.

Which class is given for which is counted among the surest predictions (:mod:`sgoif.evidence.counts`). With few errors
no class is likelier than another, and labels are ranked by their margin over training; where many errors lie in few
pairs of classes, Bayes moves those pairs up.

The network has seen these labels. How far that raised their margin is measured on the hold-out, which it has not seen,
and taken away again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sgoif.evidence.counts import count_sure, shrink_counts
from sgoif.evidence.logistic import sigmoid
from sgoif.evidence.votes import LikelyOthers
from sgoif.types import Floats, Ints

__all__ = ["KeptPredictions", "WatchedNoise", "measure_memorisation", "read_noise"]

_TRACE = 1e-6  # of every class that is named, so that Bayes can say something of it
_SURE = 1e-9
_TINY = 1e-12
_RAISED_SHARE = 0.5
_CHUNK = 1 << 16  # examples at once: each takes a table of five by five classes


@dataclass(frozen=True, slots=True)
class KeptPredictions:
    """What a network says of some examples: the given class, three others, and all the rest as if it were one class.

    That is enough for a posterior under any model of the noise, at the same cost whatever the number of classes.

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

    def lower(self, by: float) -> KeptPredictions:
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


@dataclass(frozen=True, slots=True)
class WatchedNoise:
    """Which class is given for which, and how far the network has learnt the given labels by heart."""

    transition: Floats  # P(given | true), [C, C]
    raised: float  # how far training has raised the margin of the labels it saw

    def log_odds(self, kept: KeptPredictions, margin: Floats, *, is_seen: bool = True) -> Floats:
        """Compute the log odds that a label is wrong, ``[N]``.

        Args:
            kept: predictions.
            margin: mean log-probability of the given class above the best other, ``[N]``.
            is_seen: whether the network was trained on these examples.
        """
        found = np.empty(len(margin))
        for part, joint in self._parts(kept, margin, is_seen):
            found[part] = np.log(np.maximum(joint[:, 1:].sum(1), _TINY)) - np.log(np.maximum(joint[:, 0], _TINY))
        return found

    def suggest(self, kept: KeptPredictions, margin: Floats, is_known: NDArray[np.bool_]) -> LikelyOthers:
        """Name the classes besides the given one that training examples are likeliest of.

        Their probabilities are those where the given label is wrong.

        Args:
            kept: predictions.
            margin: as for :meth:`log_odds`.
            is_known: which classes may be named, ``[C]``.
        """
        found, shares = np.full((len(margin), 3), -1), np.zeros((len(margin), 3))
        for part, joint in self._parts(kept, margin, is_seen=True):
            others = np.where(is_known[kept.labels[part, 1:]], kept.labels[part, 1:], -1)
            named = np.where(others >= 0, joint[:, 1:4], 0.0)
            order = np.argsort(-np.where(others >= 0, named, -1.0), axis=1, kind="stable")
            found[part] = np.take_along_axis(others, order, 1)
            among = joint[:, 1:].sum(1, keepdims=True)
            shares[part] = np.take_along_axis(named, order, 1) / np.where(among > 0, among, 1.0)
        return LikelyOthers(found, shares)

    def _parts(self, kept: KeptPredictions, margin: Floats, is_seen: bool) -> list[tuple[slice, Floats]]:
        parts = (slice(start, start + _CHUNK) for start in range(0, len(margin), _CHUNK))
        lowered = margin - (self.raised if is_seen else 0.0)
        return [(part, kept.some(part).with_margin(lowered[part]).joint(self.transition)) for part in parts]


def read_noise(kept: KeptPredictions, is_known: NDArray[np.bool_], raised: float = 0.0) -> WatchedNoise:
    """Count among the surest predictions which class is given for which.

    Args:
        kept: predictions of training examples, or of a sample of them.
        is_known: classes that are judged, ``[C]``; the others are given for none, and none for them.
        raised: from :func:`measure_memorisation`; 0 for examples that the network was not trained on.
    """
    predicted, confidence = kept.lower(raised).most_probable()
    found = shrink_counts(count_sure(predicted, confidence, kept.given, kept.num_classes))
    found = np.where(is_known[:, None] & is_known, found, 0.0)
    np.fill_diagonal(found, 0.0)
    np.fill_diagonal(found, 1 - found.sum(1))
    return WatchedNoise(found, raised)


def measure_memorisation(margin: Floats, held_margin: Floats) -> float:
    """How far training has raised the margins of its own labels: half the difference of the medians, not below 0.

    Most labels are right in both, so that the medians tell little of the errors. With all of the difference, 546 errors
    were expected among 20,000 right labels, with half of it 115, with none 37; and of 595 errors in pairs of classes
    878, 547 and 370 (development set).

    >>> measure_memorisation(np.array([1.0, 2.0, 3.0]), np.array([0.5, 1.5, 2.5]))
    0.25
    """
    seen, unseen = margin[np.isfinite(margin)], held_margin[np.isfinite(held_margin)]
    if not len(seen) or not len(unseen):
        return 0.0
    return max(0.0, _RAISED_SHARE * float(np.median(seen) - np.median(unseen)))
