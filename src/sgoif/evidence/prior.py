"""How many errors there are: the share of positives re-estimated where there are no labels.

A calibration learnt where a share π of the examples is positive gives wrong probabilities where that share is q. If
the two kinds of example look the same in both places, only the odds are off by a factor, and q is found by maximum
likelihood without labels (Saerens, Latinne, Decaestecker 2002): the posterior under the current q averages to the next.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SgoifError
from sgoif.evidence.logistic import sigmoid

__all__ = ["log_odds", "shift_prior"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_BIN = 0.02  # log odds that EM takes for one: far below what a calibration resolves
_EDGE = 1e-6  # priors stay this far from 0 and 1


def log_odds(probability: float | Floats) -> Floats:
    """Compute ``log(p / (1 - p))``, finite at the ends."""
    p = np.clip(probability, 1e-12, 1 - 1e-12)
    return np.asarray(np.log(p) - np.log1p(-p))


def shift_prior(
    odds: Floats,
    prior: float,
    classes: Ints | None = None,
    num_classes: int = 1,
    strength: float = 200.0,
    max_iterations: int = 2_000,
) -> Floats:
    """Re-estimate the share of positives by EM: ``[C]``, or ``[1]`` without classes.

    Log odds are counted in bins first, so an iteration costs the number of occupied bins and not of examples; such
    counts of parts of the data can be added up.

    Args:
        odds: Log odds of each example under ``prior``, ``[N]``; those not finite are left out.
        prior: Share of positives where the calibration was learnt.
        classes: Groups with a share of their own, ``[N]``; one share for all if left out.
        num_classes: ``C``.
        strength: As how many examples the common share counts in each class. A class's own share is the less to be
            trusted the more its scores are shifted against the canaries', which EM takes for errors.
        max_iterations: It stops earlier where no share moves by 1e-7.

    >>> rng = np.random.default_rng(0)
    >>> x = np.concatenate([rng.normal(1, 1, 1_000), rng.normal(-1, 1, 9_000)])
    >>> shift_prior(2 * x, prior=0.5).round(1)  # log odds of two unit normals at ±1
    array([0.1])
    """
    if not 0 < prior < 1:
        raise SgoifError(f"the prior must lie inside (0, 1), got {prior}; canaries need both kinds.")
    group = np.zeros(len(odds), dtype=np.int64) if classes is None else np.asarray(classes, dtype=np.int64)
    known = np.isfinite(odds)
    if not known.any():
        raise SgoifError(f"none of {len(odds)} log odds is finite; there is nothing to estimate a share from.")
    bins = np.round(np.clip(odds[known], -40, 40) / _BIN).astype(np.int64)
    keys, counts = np.unique(group[known] * 10_000 + bins + 5_000, return_counts=True)
    place, value = keys // 10_000, (keys % 10_000 - 5_000) * _BIN - float(log_odds(prior))
    size = np.bincount(place, weights=counts, minlength=num_classes)
    shares = np.full(num_classes, prior)
    for _ in range(max_iterations):
        hits = np.bincount(place, weights=counts * sigmoid(value + log_odds(shares)[place]), minlength=num_classes)
        pull = strength if classes is not None else 0.0
        before = shares
        shares = np.clip((hits + pull * hits.sum() / size.sum()) / np.maximum(size + pull, 1e-12), _EDGE, 1 - _EDGE)
        if np.abs(shares - before).max() < 1e-7:
            break
    return shares
