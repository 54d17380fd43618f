"""What decisions say about the labels that nobody looked at. The review page repeats the correction in JavaScript.

Decided cards correct the probabilities of the others by a logistic shift, ``logit p' = logit p + a + b_pair``: one
``a`` for the whole list, with prior N(0, 1), and one ``b`` for every pair of given and suggested class that has
decisions, with prior N(0, 0.5²).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.evidence.checked import Design, Verdicts, estimate
from sgoif.types import Floats

__all__ = [
    "ErrorRate",
    "Recalibrated",
    "Unlisted",
    "count_left_over",
    "error_rate",
    "recalibrate",
    "recalibrate_cards",
    "wilson",
]


Z = 1.6448536269514722  # of a 90% interval
_CLIP = 1e-4
_SWEEPS = 25
_PRIOR_A = 1.0  # precisions, 1 / variance
_PRIOR_B = 4.0


@dataclass(frozen=True, slots=True)
class Recalibrated:
    """Probabilities after decisions."""

    p: Floats  # [n], 0 or 1 where decided
    p_shifted: Floats  # [n], by the shifts alone, decided or not
    is_decided: NDArray[np.bool_]  # [n]
    shift: float  # a
    shift_variance: float  # of a, after the decisions


def recalibrate(
    p: Floats, pair: NDArray[np.integer[Any]], decided_rows: NDArray[np.integer[Any]], is_wrong: NDArray[np.bool_]
) -> Recalibrated:
    """Correct probabilities by what was decided.

    25 sweeps; each takes one Newton step for ``a``, then one for every ``b``, none longer than 1, since Newton's method
    would leap to and fro where a list is far off. ``p`` is clipped to [1e-4, 1 - 1e-4].

    Args:
        p: probability that each card's label is wrong; NaN where it was not judged, and stays so unless decided.
        pair: a number for the given and the suggested class of each card.
        decided_rows: cards that were decided; leave out those that people were unsure about.
        is_wrong: what was decided on these.
    """
    x = _logit(np.clip(p, _CLIP, 1 - _CLIP))
    usable = np.isfinite(x[decided_rows])
    rows, y = decided_rows[usable], is_wrong[usable].astype(np.float64)
    pairs, k = np.unique(pair[rows], return_inverse=True)
    k = k.reshape(-1)
    a, b = 0.0, np.zeros(len(pairs))
    for _ in range(_SWEEPS):
        q = _sigmoid(x[rows] + a + b[k])
        a += float(np.clip(((y - q).sum() - _PRIOR_A * a) / ((q * (1 - q)).sum() + _PRIOR_A), -1, 1))
        q = _sigmoid(x[rows] + a + b[k])
        slope = np.bincount(k, y - q, len(pairs)) - _PRIOR_B * b
        b += np.clip(slope / (np.bincount(k, q * (1 - q), len(pairs)) + _PRIOR_B), -1, 1)
    q = _sigmoid(x[rows] + a + b[k])
    weight = np.bincount(k, q * (1 - q), len(pairs))
    # what the decisions of a pair tell of `a`, once its own `b` may be anything that its prior allows
    variance = 1 / (_PRIOR_A + float((weight * _PRIOR_B / (weight + _PRIOR_B)).sum()))
    shifted = _sigmoid(x + a + _of_pair(pair, pairs, b))
    known, is_decided = shifted.copy(), np.zeros(len(p), bool)
    known[decided_rows], is_decided[decided_rows] = is_wrong, True
    return Recalibrated(known, shifted, is_decided, a, variance)


def recalibrate_cards(
    p: Sequence[float | None], pairs: Sequence[Hashable], verdicts: Mapping[int, bool]
) -> Recalibrated:
    """Correct the probabilities of cards by which of them are wrong; ``pairs`` has their given and suggested class."""
    numbers = {pair: number for number, pair in enumerate(dict.fromkeys(pairs))}
    return recalibrate(
        np.array([np.nan if value is None else value for value in p], dtype=np.float64),
        np.array([numbers[pair] for pair in pairs], dtype=np.int64),
        np.array(list(verdicts), dtype=np.int64),
        np.array(list(verdicts.values()), dtype=bool),
    )


def count_left_over(found: Recalibrated) -> tuple[float, float]:
    """Count the wrong labels among the cards that are not decided: expectation and standard deviation."""
    rest = found.p[~found.is_decided]
    spread = float(np.nansum(rest * (1 - rest)))
    return float(np.nansum(rest)), float(np.sqrt(spread + spread**2 * found.shift_variance))


@dataclass(frozen=True, slots=True)
class Unlisted:
    """Examples that were on no list: how many, and the sums of p and p (1 - p) over all of them."""

    num_examples: int
    sum_p: float
    sum_variance: float


@dataclass(frozen=True, slots=True)
class ErrorRate:
    """Error rate of a whole set with a 90% interval, and where it comes from."""

    rate: float
    low: float
    high: float
    num_examples: int
    num_known: int  # wrong labels that people found
    num_sampled: int  # examples of the random sample
    model_share: float  # of the estimated errors, those that rest on the run's probabilities alone


def error_rate(listed: Recalibrated, unlisted: Unlisted, sample_is_wrong: NDArray[np.bool_]) -> ErrorRate:
    """Estimate the error rate of listed and unlisted examples together.

    Decided cards are known. Unlisted examples are estimated from a uniform random sample of them, as in ``sgoif
    verify``: unbiased whatever p is worth. Cards that are listed but not decided, and unlisted examples without a
    sample, rest on the model. With all cards decided and a sample, nothing does.
    """
    known = float(np.nansum(listed.p[listed.is_decided]))
    by_model, deviation = count_left_over(listed)
    variance = deviation**2
    rest = low = high = 0.0
    sampled, wrong = len(sample_is_wrong), int(sample_is_wrong.sum())
    if sampled:
        share = estimate(Design((0, unlisted.num_examples), (sampled,)), Verdicts([wrong], [sampled - wrong], [0]))
        assert share is not None
        rest, low, high = (unlisted.num_examples * end for end in (share.value, share.low, share.high))
    else:
        by_model += unlisted.sum_p
        variance += unlisted.sum_variance + unlisted.sum_variance**2 * listed.shift_variance
    total = known + by_model + rest
    count = max(len(listed.p) + unlisted.num_examples, 1)
    below, above = (float(np.hypot(Z * np.sqrt(variance), end - rest)) for end in (low, high))
    return ErrorRate(
        rate=max(total, known) / count,
        low=max(total - below, known) / count,
        high=min(max(total, known) + above, count) / count,
        num_examples=count,
        num_known=round(known),
        num_sampled=sampled,
        model_share=by_model / total if total > 0 else 0.0,
    )


def wilson(num_hits: int, num_trials: int) -> tuple[float, float]:
    """90% interval of a share by Wilson's score.

    >>> [round(end, 3) for end in wilson(9, 10)]
    [0.652, 0.977]
    """
    if not num_trials:
        return 0.0, 1.0
    share, z2 = num_hits / num_trials, Z * Z / num_trials
    centre = (share + z2 / 2) / (1 + z2)
    half = float(np.sqrt(share * (1 - share) * z2 + z2 * z2 / 4)) / (1 + z2)
    return max(centre - half, 0.0), min(centre + half, 1.0)


def _of_pair(pair: NDArray[np.integer[Any]], pairs: NDArray[np.integer[Any]], b: Floats) -> Floats:
    """The shift of each card's pair; none where nothing was decided on it."""
    if not len(pairs):
        return np.zeros(len(pair))
    place = np.minimum(np.searchsorted(pairs, pair), len(pairs) - 1)
    return np.where(pairs[place] == pair, b[place], 0.0)


def _logit(p: Floats) -> Floats:
    return np.asarray(np.log(p) - np.log1p(-p))


def _sigmoid(x: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-x)))
