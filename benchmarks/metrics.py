"""How well scores find errors: precision, recall, average precision, AUROC.

High scores mean "looks like an error". Examples with equal scores count as their average over all orders, so that a
metric never depends on the order in which the examples arrived. Functions return shares in [0, 1];
:func:`detection_report` returns percent.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray


class _Ranking(NamedTuple):
    """Groups of equal scores, highest first."""

    size: NDArray[np.int64]  # [G] examples in each group
    errors: NDArray[np.int64]  # [G] errors among them
    size_before: NDArray[np.int64]  # [G] examples in all groups above
    errors_before: NDArray[np.int64]  # [G] errors among those

    @property
    def num_examples(self) -> int:
        return int(self.size.sum())

    @property
    def num_errors(self) -> int:
        return int(self.errors.sum())


def average_precision(scores: ArrayLike, is_error: ArrayLike) -> float:
    """Compute ``Σ_k (R_k - R_{k-1}) P_k``, its expectation over random order where scores are equal.

    In a group of ``t`` equal scores with ``p`` errors, below ``k`` examples of which ``e`` are errors, place ``j``
    holds an error with probability ``p/t``, and then has on average ``e + 1 + (j-1)(p-1)/(t-1)`` errors at or above it
    among ``k + j`` examples.
    """
    ranking = _rank(scores, is_error)
    t, p = np.repeat(ranking.size, ranking.size), np.repeat(ranking.errors, ranking.size)
    k, e = np.repeat(ranking.size_before, ranking.size), np.repeat(ranking.errors_before, ranking.size)
    place = np.arange(1, len(t) + 1)
    above_in_group = (place - k - 1) * (p - 1) / np.maximum(t - 1, 1)
    return float(np.sum(p / t * (e + 1 + above_in_group) / place) / ranking.num_errors)


def auroc(scores: ArrayLike, is_error: ArrayLike) -> float:
    """Compute the probability that an error scores above a correct example, equal scores counting one half."""
    ranking = _rank(scores, is_error)
    correct = ranking.size - ranking.errors
    num_correct = int(correct.sum())
    if num_correct == 0:
        raise ValueError("AUROC needs correct examples beside the errors, but every example is an error")
    correct_below = num_correct - np.cumsum(correct)
    return float(np.sum(ranking.errors * (correct_below + correct / 2)) / (ranking.num_errors * num_correct))


def precision_at(scores: ArrayLike, is_error: ArrayLike, q: float) -> float:
    """Compute the share of errors among the ``K = ceil(q N)`` highest scores."""
    ranking = _rank(scores, is_error)
    count = top_count(q, ranking.num_examples)
    return _expected_hits(ranking, count) / count


def recall_at(scores: ArrayLike, is_error: ArrayLike, q: float) -> float:
    """Compute the share of all errors that lie among the ``K = ceil(q N)`` highest scores."""
    ranking = _rank(scores, is_error)
    return _expected_hits(ranking, top_count(q, ranking.num_examples)) / ranking.num_errors


def top_count(q: float, num_examples: int) -> int:
    """Compute ``K = ceil(q N)``, forgiving the rounding of ``q N`` (0.07 × 100 is a little above 7)."""
    if not 0 < q <= 1:
        raise ValueError(f"q is a share in (0, 1], got {q}")
    return math.ceil(q * num_examples - 1e-9 * num_examples)


def precision_standard_error(precision: float, count: int) -> float:
    """Compute the binomial standard error ``sqrt(p (1-p) / K)`` of a precision measured on ``K`` examples."""
    return math.sqrt(max(precision * (1 - precision), 0.0) / count)


def detection_report(scores: ArrayLike, is_error: ArrayLike) -> dict[str, float]:
    """Summarise a ranking in percent, with the numbers needed to read it.

    Beside the metrics stand the number of examples and errors, the noise ``rate``, ``ap_chance`` (the expectation of a
    random order, a little above the rate) and ``r@1%_ceiling`` (the recall if the first ``K`` were all errors).
    """
    ranking = _rank(scores, is_error)
    n, errors = ranking.num_examples, ranking.num_errors
    rate = errors / n
    report = {
        "examples": float(n),
        "errors": float(errors),
        "rate": 100 * rate,
        "ap": 100 * average_precision(scores, is_error),
        "ap_chance": 100 * average_precision(np.zeros(n), is_error),
        "auroc": 100 * auroc(scores, is_error),
    }
    for percent in (1, 5, 10):
        q = percent / 100
        precision, recall = precision_at(scores, is_error, q), recall_at(scores, is_error, q)
        _assert_identity(precision, recall, rate, top_count(q, n) / n)
        report[f"p@{percent}%"], report[f"r@{percent}%"] = 100 * precision, 100 * recall
    count = top_count(0.01, n)
    report["p@1%_se"] = 100 * precision_standard_error(report["p@1%"] / 100, count)
    report["r@1%_ceiling"] = 100 * min(1.0, count / errors)
    return report


def _assert_identity(precision: float, recall: float, rate: float, share: float) -> None:
    """Check ``R@q × rate == P@q × K/N``: both are the share of all examples that are found errors."""
    assert math.isclose(recall * rate, precision * share, rel_tol=1e-9, abs_tol=1e-12), (
        f"recall {recall} x rate {rate} must equal precision {precision} x share {share}"
    )


def _expected_hits(ranking: _Ranking, count: int) -> float:
    """Count the errors among the first ``count`` examples; a group that is cut counts in proportion."""
    taken = np.clip(count - ranking.size_before, 0, ranking.size)
    return float(np.sum(taken * ranking.errors / ranking.size))


def _rank(scores: ArrayLike, is_error: ArrayLike) -> _Ranking:
    values, errors = np.asarray(scores, dtype=np.float64), np.asarray(is_error)
    if values.ndim != 1 or values.shape != errors.shape:
        raise ValueError(f"scores and is_error must be vectors of one length, got {values.shape} and {errors.shape}")
    if np.isnan(values).any():
        raise ValueError(f"{np.isnan(values).sum()} of {len(values)} scores are NaN; decide where they rank")
    errors = errors.astype(bool)
    if not errors.any():
        raise ValueError("there is no error to be found: is_error is False everywhere")
    _, group = np.unique(-values, return_inverse=True)  # ascending in -score: highest score first
    size = np.bincount(group).astype(np.int64)
    hits = np.bincount(group, weights=errors).astype(np.int64)
    return _Ranking(size, hits, np.cumsum(size) - size, np.cumsum(hits) - hits)


def calibration_of_top(p: ArrayLike, is_error: ArrayLike) -> list[dict[str, float]]:
    """The mean probability of the first 1, 5 and 10% of a list, beside the share of them that are errors."""
    values, wrong = np.asarray(p), np.asarray(is_error)
    order = np.argsort(-values, kind="stable")
    found = []
    for top in (0.01, 0.05, 0.10):
        first = order[: top_count(top, len(values))]
        found.append(
            {"top": top, "count": len(first), "value": float(values[first].mean()), "true": float(wrong[first].mean())}
        )
    return found


def weighted_mean(
    ids: NDArray[np.int64], values: NDArray[Any], weight: NDArray[Any], count: int
) -> NDArray[np.float64]:
    """Mean value of each example's visits; an example without weight is the least suspicious."""
    total = np.bincount(ids, weights=values * weight, minlength=count)
    mass = np.bincount(ids, weights=weight, minlength=count)
    mean = total / np.maximum(mass, 1e-12)
    return np.where(mass > 0, mean, mean[mass > 0].min() if (mass > 0).any() else 0.0)


def best_other(values: NDArray[Any], given: NDArray[np.int64]) -> NDArray[Any]:
    """The largest value among the classes that were not given, ``[N, C] -> [N]``."""
    masked = values.copy()
    masked[np.arange(len(given)), given] = -np.inf
    return np.asarray(masked.max(1))
