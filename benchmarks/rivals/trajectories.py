"""What the outputs of every visit say: loss, AUM, EL2N, forgetting, Data-IQ.

All of it is there while the model trains, so it costs next to nothing. The functions take visits as a monitored
training keeps them (``Trained.visits``) or as :func:`benchmarks.rivals.case.train_bare` records them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.metrics import weighted_mean
from benchmarks.rivals.case import Bare, Case, Floats, Found, stopwatch

__all__ = ["NAMES", "find", "forgetting_events", "score_visits"]

NAMES = (
    "loss EMA",
    "AUM",
    "EL2N",
    "forgetting",
    "Data-IQ, confidence",
    "Data-IQ, aleatoric",
    "Data-IQ, hard",
)
DECAY = 0.9  # of the loss average, per epoch

Visits = Mapping[str, NDArray[Any]]


def find(case: Case, bare: Bare) -> dict[str, Found]:
    """Score every example by what its visits showed; each score pays for the recording and for itself."""
    with stopwatch() as clock:
        scores = score_visits(bare.visits, len(case.given))
    seconds = bare.seconds_recording + clock.seconds
    return {name: Found(values, seconds) for name, values in scores.items()}


def score_visits(visits: Visits, count: int) -> dict[str, Floats]:
    """Turn visits into scores.

    - Loss EMA: exponential average of the loss, the bias of its start removed.
    - AUM (Pleiss et al. 2020): mean margin of the given label, negated. EL2N (Paul et al. 2021): mean ``|p - e_y|``.
    - Forgetting (Toneva et al. 2019): see :func:`forgetting_events`.
    - Data-IQ (Seedat et al. 2022): low confidence ``mean p``; aleatoric uncertainty ``mean p (1 - p)``; and its *hard*
      group, where both are low, as one number: ``1 - mean p - mean p (1 - p) = mean (1 - p)²``.
    """
    ids, p = visits["id"], visits["p_given"].astype(np.float64)
    recent = DECAY ** (visits["epoch"].max() - visits["epoch"]).astype(np.float64)

    def mean(values: NDArray[Any], weight: NDArray[Any] | None = None) -> Floats:
        return weighted_mean(ids, values.astype(np.float64), np.ones(len(ids)) if weight is None else weight, count)

    found = (
        mean(visits["loss"], recent),
        mean(-visits["margin"]),
        mean(visits["el2n"]),
        forgetting_events(visits, count),
        mean(1 - p),
        mean(p * (1 - p)),
        mean((1 - p) ** 2),
    )
    return dict(zip(NAMES, found))


def forgetting_events(visits: Visits, count: int) -> Floats:
    """Count how often an example was right at a visit and wrong at its next; never right counts as most of all."""
    order = np.lexsort((visits["epoch"], visits["id"]))
    ids, is_right = visits["id"][order], visits["margin"][order] > 0
    forgotten = (ids[1:] == ids[:-1]) & is_right[:-1] & ~is_right[1:]
    events = np.bincount(ids[1:][forgotten], minlength=count).astype(np.float64)
    ever_right = np.bincount(ids[is_right], minlength=count) > 0
    return np.where(ever_right, events, float(visits["epoch"].max()) + 1)
