"""How many errors there are: the share of positives re-estimated where there are no labels.

A calibration learnt where a share π of the examples is positive gives wrong probabilities where that share is q. If
the two kinds of example look the same in both places, only the odds are off by a factor, and q is found by maximum
likelihood without labels (Saerens, Latinne, Decaestecker 2002): the posterior under the current q averages to the next.
"""

from __future__ import annotations

import numpy as np

from sgoif.errors import SgoifError
from sgoif.evidence.logistic import sigmoid
from sgoif.types import Floats

__all__ = ["log_odds", "shift_prior"]


_BIN = 0.02  # log odds that EM takes for one: far below what a calibration resolves
_EDGE = 1e-6  # priors stay this far from 0 and 1


def log_odds(probability: float | Floats) -> Floats:
    """Compute ``log(p / (1 - p))``, finite at the ends."""
    p = np.clip(probability, 1e-12, 1 - 1e-12)
    return np.asarray(np.log(p) - np.log1p(-p))


def shift_prior(odds: Floats, prior: float, max_iterations: int = 2_000) -> float:
    """Re-estimate the share of positives by EM.

    Log odds are counted in bins first, so an iteration costs the number of occupied bins and not of examples.

    Args:
        odds: Log odds of each example under ``prior``, ``[N]``; those not finite are left out.
        prior: Share of positives where the calibration was learnt.
        max_iterations: It stops earlier where the share moves by less than 1e-7.

    >>> rng = np.random.default_rng(0)
    >>> x = np.concatenate([rng.normal(1, 1, 1_000), rng.normal(-1, 1, 9_000)])
    >>> round(shift_prior(2 * x, prior=0.5), 1)  # log odds of two unit normals at ±1
    0.1
    """
    if not 0 < prior < 1:
        raise SgoifError(f"the prior must lie inside (0, 1), got {prior}; canaries need both kinds.")
    known = odds[np.isfinite(odds)]
    if not known.size:
        raise SgoifError(f"none of {len(odds)} log odds is finite; there is nothing to estimate a share from.")
    bins, counts = np.unique(np.round(np.clip(known, -40, 40) / _BIN), return_counts=True)
    value, share = bins * _BIN - float(log_odds(prior)), prior
    for _ in range(max_iterations):
        before = share
        share = float(np.clip(np.average(sigmoid(value + log_odds(share)), weights=counts), _EDGE, 1 - _EDGE))
        if abs(share - before) < 1e-7:
            break
    return share
