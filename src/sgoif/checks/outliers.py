"""Out-of-distribution examples: far from every class, beyond what the tail of this data explains.

The score is the logarithm of the Mahalanobis distance to the nearest class, with means and the shared covariance of the
other folds, so that no example sets its own standard. Examples are selected so that about one in five of them is
expected to be ordinary, if the distances of ordinary examples go on as their upper half begins
(:func:`sgoif.checks.numbers.tail_p_values`). On Fashion-MNIST with foreign pictures this ranks better than the distance
to the nearest ten examples, since foreign pictures of one kind are near each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.checks.data import CheckedData, DataIssue, cannot_check, list_worst
from sgoif.checks.numbers import make_rng, select_discoveries, share_interval, tail_p_values
from sgoif.types import Floats
from sgoif.wording import count

__all__ = ["FALSE_SHARE", "find_outliers", "outlier_scores", "reduce_features"]

KIND = "outliers"
FALSE_SHARE = 0.2  # of what is selected

_FEWEST = 200  # examples, to know a tail by
_FOLDS = 5
_SHRINK = 0.1  # of the covariance towards equal variances
_DIMENSIONS, _FITTED, _BLOCK = 128, 10_000, 2_000
_MANY = 0.01  # share from which on outliers are more than a few odd examples


def find_outliers(data: CheckedData, *, seed: int = 0) -> DataIssue:
    """Find the examples that are far from every class."""
    if data.features is None:
        return cannot_check(KIND, "the run has no embeddings or numeric columns to measure distances in")
    usable = np.flatnonzero(data.is_finite)
    if min(len(usable), int((data.labels[usable] >= 0).sum())) < _FEWEST:
        return cannot_check(KIND, f"{count(len(usable), 'example')} with features; {_FEWEST} show what is ordinary")
    scores = outlier_scores(data.features_of(usable), data.labels[usable], seed=seed)
    is_known = np.isfinite(scores)
    if is_known.sum() < _FEWEST or np.ptp(scores[is_known]) == 0:
        return cannot_check(KIND, "most examples have the same features, so that distances say nothing")
    usable, scores = usable[is_known], scores[is_known]
    p = tail_p_values(scores)
    chosen = select_discoveries(p, FALSE_SHARE)
    number = int(chosen.sum())
    low, high = share_interval(number, len(usable))
    rows = np.flatnonzero(chosen)
    title = "No example lies farther from its class than the tail of the distances explains."
    if number:
        title = f"{count(number, 'example')} {'lies' if number == 1 else 'lie'} far from every class; "
        title += f"about {FALSE_SHARE:.0%} of such findings are expected to be ordinary."
    return DataIssue(
        KIND,
        title,
        number,
        number / len(usable),
        low,
        high,
        p_value=float(min(1.0, p.min() * len(p))),
        severity="none" if not number else "medium" if number >= _MANY * len(usable) else "low",
        what_to_do="Look at them: remove what is of no class, and collect more of what is right but rare.",
        **list_worst(data, usable[rows], scores[rows]),
    )


def outlier_scores(features: NDArray[np.floating[Any]], labels: NDArray[np.int64], *, seed: int = 0) -> Floats:
    """Log Mahalanobis distance of each row to the nearest class mean of the other folds, ``[N]``.

    Costs ``O(N C D)`` for ``C`` classes and at most 129 coordinates; rows whose label is below 0 are only scored.
    """
    rows = reduce_features(features, seed=seed)
    fold = make_rng(seed, KIND).permutation(len(rows)) % _FOLDS
    scores = np.empty(len(rows))
    for number in range(_FOLDS):
        means = _whitened_means(rows, labels, (fold != number) & (labels >= 0))
        mine = np.flatnonzero(fold == number)
        for start in range(0, len(mine), _BLOCK):
            block = mine[start : start + _BLOCK]
            scores[block] = means.nearest(rows[block])
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(scores))


@dataclass(frozen=True)
class _Means:
    """Class means where the covariance within classes is the identity."""

    whitening: NDArray[np.float32]  # [D, D]
    means: NDArray[np.float32]  # [C, D]

    def nearest(self, rows: NDArray[np.float32]) -> Floats:
        """Distance of rows to the nearest mean."""
        placed = rows @ self.whitening
        least = np.full(len(rows), np.inf)
        for start in range(0, len(self.means), _BLOCK):
            part = self.means[start : start + _BLOCK]
            squares = (placed**2).sum(1)[:, None] + (part**2).sum(1) - 2 * placed @ part.T
            least = np.minimum(least, squares.min(1))
        return np.sqrt(np.maximum(least.astype(np.float64), 0))


def _whitened_means(rows: NDArray[np.float32], labels: NDArray[np.int64], used: NDArray[np.bool_]) -> _Means:
    codes, rows = np.unique(labels[used], return_inverse=True)[1].reshape(-1), rows[used]
    means = np.zeros((int(codes.max(initial=0)) + 1, rows.shape[1]))
    np.add.at(means, codes, rows)
    means /= np.bincount(codes, minlength=1)[:, None]
    covariance = np.zeros((rows.shape[1], rows.shape[1]))
    for start in range(0, len(codes), _FITTED):
        part = rows[start : start + _FITTED] - means[codes[start : start + _FITTED]]
        covariance += part.T @ part / len(codes)
    size = np.trace(covariance) / len(covariance)
    covariance += (_SHRINK * size + 1e-12) * np.eye(len(covariance))
    values, vectors = np.linalg.eigh(covariance)
    whitening = vectors / np.sqrt(values)
    return _Means(whitening.astype(np.float32), (means @ whitening).astype(np.float32))


def reduce_features(
    features: NDArray[np.floating[Any]], dimensions: int = _DIMENSIONS, *, seed: int = 0
) -> NDArray[np.float32]:
    """Project rows onto some principal directions, and keep the length of what is left as one more coordinate.

    Rows that have no more coordinates than that are only centred.
    """
    rows = np.asarray(features, np.float32)
    sample = rows
    if len(rows) > _FITTED:
        sample = rows[np.sort(make_rng(seed, KIND).choice(len(rows), _FITTED, replace=False))]
    mean = sample.mean(0, dtype=np.float64)
    if rows.shape[1] <= dimensions:
        return np.asarray(rows - mean.astype(np.float32))
    centred = (sample - mean).astype(np.float64)
    _, vectors = np.linalg.eigh(centred.T @ centred)
    basis = vectors[:, -dimensions:].astype(np.float32)
    parts = []
    for start in range(0, len(rows), _FITTED):
        part = rows[start : start + _FITTED] - mean.astype(np.float32)
        inside = part @ basis
        left = np.maximum((part**2).sum(1) - (inside**2).sum(1), 0)
        parts.append(np.concatenate([inside, np.sqrt(left)[:, None]], 1))
    return np.concatenate(parts)
