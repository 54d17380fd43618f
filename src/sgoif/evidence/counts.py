"""Which class is given for which, counted where a classifier is surest, and shrunk to what the counts can carry.

The classifier never saw the label that it is compared with. Among its surest predictions of a class nearly all examples
are of that class, so that the labels they carry are counts of the noise, and not of what the classifier confuses.

Counts are shrunk twice. Which other class is given is pulled towards *any other alike*, or towards the classes that are
near (a Dirichlet-multinomial), and how often one is given towards the rate of all classes (a beta-binomial). Each pull
is the strongest whose evidence is within 2 nats of the best: a few errors are spread noise, and only many errors in few
pairs of classes are a pattern.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sgoif.types import Floats, Ints

__all__ = [
    "SURE_SHARE",
    "count_sure",
    "limit_leaks",
    "recover_true",
    "scale_errors",
    "shrink_counts",
    "spread_errors",
]


SURE_SHARE = 0.1  # of the predictions of a class
_LEAST_SURE, _FEWEST_SURE = 20, 5  # predictions of a class that are counted at least, with few classes and with many
_ENOUGH = 200  # sure predictions of all classes together
_STRENGTHS = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1e3, 1e4)  # in examples
_SLACK = 2.0  # nats of evidence
_MOST_LEAK = 0.95  # of the share that a class keeps: no class may be given another label more often than its own


def count_sure(predicted: Ints, confidence: NDArray[np.floating], given: Ints, num_classes: int) -> Ints:
    """Count the given labels of the surest predictions of each class, ``[C, C]``.

    Args:
        predicted: the most probable class of each example, ``[N]``, by a classifier that was not trained on it.
        confidence: its probability, ``[N]``.
        given: labels, ``[N]``.
        num_classes: ``C``.

    >>> count_sure(np.array([0, 0, 1]), np.array([0.9, 0.8, 0.7]), np.array([0, 1, 1]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    order = np.lexsort((-confidence, predicted))
    sizes = np.bincount(predicted, minlength=num_classes)
    rank = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    least = max(_FEWEST_SURE, min(_LEAST_SURE, _ENOUGH // num_classes))
    wanted = np.maximum((SURE_SHARE * sizes).astype(np.int64), np.minimum(least, sizes))
    sure = order[rank < np.repeat(wanted, sizes)]
    pairs = predicted[sure] * num_classes + given[sure]
    return np.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)


def shrink_counts(counts: Ints, slack: float = _SLACK, near: Floats | None = None) -> Floats:
    """The transition ``P(given | true)`` that the counts can carry, ``[C, C]``.

    Args:
        counts: by :func:`count_sure`.
        slack: nats of evidence that the stronger pull may cost; 0 where other evidence says that there is a pattern.
        near: which other class is given for each before anything is counted, ``[C, C]``; any alike if left out.

    >>> few, many = np.array([[99, 1, 0], [0, 100, 0], [0, 0, 100]]), np.array([[60, 40, 0], [0, 99, 1], [0, 0, 99]])
    >>> shrink_counts(few)[0].round(3).tolist()  # one error is no pattern
    [0.995, 0.003, 0.003]
    >>> shrink_counts(many)[0].round(1).tolist()
    [0.6, 0.4, 0.0]
    """
    size, totals = len(counts), counts.sum(1)
    wrong = totals - np.diag(counts)
    mean = (wrong.sum() + 0.5) / (totals.sum() + 1)
    pull, usual = 1.0, 1 / (size - 1) if near is None else near
    if size > 2:
        is_found = (counts > 0) & ~np.eye(size, dtype=bool)
        expected = np.full(1, usual) if near is None else near[is_found]
        pull = _strongest(lambda t: _pair_evidence(wrong, counts[is_found], expected, t), slack)
    rate_pull = _strongest(lambda a: _rate_evidence(wrong, totals, mean, a), slack)
    rate = (wrong + rate_pull * mean) / (totals + rate_pull)
    shares = (counts + pull * usual) / (wrong[:, None] + pull)
    np.fill_diagonal(shares, 0.0)
    found = rate[:, None] * shares / shares.sum(1, keepdims=True)
    np.fill_diagonal(found, 1 - rate)
    return limit_leaks(found)


def spread_errors(counts: Ints) -> Floats:
    """The transition of as many errors that go from every class to every other alike, ``[C, C]``.

    >>> spread_errors(np.array([[98, 2, 0], [0, 100, 0], [0, 0, 99]])).round(3)[0].tolist()
    [0.992, 0.004, 0.004]
    """
    size, total = len(counts), counts.sum()
    rate = float(total - np.trace(counts) + 0.5) / float(total + 1)
    found = np.full((size, size), rate / (size - 1))
    np.fill_diagonal(found, 1 - rate)
    return limit_leaks(found)


def scale_errors(transition: Floats, factor: float) -> Floats:
    """The same pattern with so many times the errors, ``[C, C]``."""
    found = transition * factor
    np.fill_diagonal(found, 0.0)
    np.fill_diagonal(found, 1 - found.sum(1))
    return limit_leaks(found)


def limit_leaks(transition: Floats, most: float = _MOST_LEAK) -> Floats:
    """Shrink the errors of classes that are given one other label more than ``most`` times as often as their own."""
    leaks = transition.copy()
    np.fill_diagonal(leaks, 0.0)
    # scaled by s, a row keeps 1 - s Σ; the largest leak is to be at most so much of that
    scale = np.minimum(1.0, most / np.maximum(leaks.max(1) + most * leaks.sum(1), 1e-12))
    leaks *= scale[:, None]
    np.fill_diagonal(leaks, 1 - leaks.sum(1))
    return np.asarray(leaks)


def recover_true(probabilities: NDArray[np.floating], transition: NDArray[np.floating], steps: int = 10) -> Floats:
    """Turn predictions of the given class into predictions of the true one, ``[N, C]`` both (Richardson-Lucy).

    Each step is one of expectation-maximisation for ``q`` in ``q T = p``: it stays positive, which ``p T⁻¹`` does not.

    >>> noise = np.array([[0.6, 0.4], [0.0, 1.0]])
    >>> recover_true(np.array([[0.6, 0.4], [0.0, 1.0]]), noise, steps=100).round(2).tolist()
    [[0.99, 0.01], [0.0, 1.0]]
    """
    found = probabilities
    for _ in range(steps):
        found = found * ((probabilities / np.maximum(found @ transition, 1e-9)) @ transition.T)
    return np.asarray(found / found.sum(1, keepdims=True))


def _strongest(evidence: Callable[[float], float], slack: float) -> float:
    values = [evidence(strength) for strength in _STRENGTHS]
    return max(s for s, value in zip(_STRENGTHS, values, strict=True) if value >= max(values) - slack)


_log_gamma = np.vectorize(math.lgamma, otypes=[np.float64])


def _pair_evidence(wrong: Ints, found: Ints, expected: Floats, strength: float) -> float:
    """Log evidence of which other classes were given, where ``strength`` examples say what is expected."""
    rows, repeats = np.unique(wrong, return_counts=True)
    by_row = (repeats * (math.lgamma(strength) - _log_gamma(strength + rows))).sum()
    each = strength * expected
    return float(by_row + (_log_gamma(each + found) - _log_gamma(each)).sum()) if len(found) else 0.0


def _rate_evidence(wrong: Ints, totals: Ints, mean: float, strength: float) -> float:
    """Log evidence of how many labels of each class are wrong, where ``strength`` examples say that rates are equal."""
    a, b = strength * mean, strength * (1 - mean)
    found = _log_gamma(wrong + a) + _log_gamma(totals - wrong + b) - _log_gamma(totals + a + b)
    return float(found.sum() - len(wrong) * (math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)))
