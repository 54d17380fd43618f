"""From a record and a replay to what a judge sees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.judge.cells import Cell
from benchmarks.judge.sets import FEW

Floats = NDArray[np.float64]
Record = Mapping[str, NDArray[Any]]


def observe(record: Record, replay: Cell) -> dict[str, Any]:
    """What a judge of records is given, as plain arrays; the record is that of the replay's base.

    ``labels`` [N], ``views`` {name: log probabilities [N, C]} and ``features`` [N, D] of training examples;
    ``holdout_labels``, ``holdout_views`` (the same names) and ``holdout_features`` of held-out ones; ``trusted``:
    whether their labels are the true ones. Views: ``final``, the finished model; ``mean``, over all visits; ``scored``,
    over those visits that the monitor scored, NaN where there is none; ``last``, the last visit, in training mode. The
    hold-out is seen at the same moments: that of ``last`` in the last epoch.
    """
    count = FEW if replay.holdout == "hundred" else len(record["held_given"])
    looks, moments = record["looks"][:, :count].astype(np.float64), record["moments"]
    visits, scored = record["visits"], record["scored"]
    over_time = mean_over_time(looks, moments)
    return {
        "labels": record["given"],
        "views": {
            "final": normalise(record["final"]),
            "mean": normalise(mean_visits(visits, np.ones_like(scored))),
            "scored": normalise(mean_visits(visits, scored)),
            "last": normalise(visits[-1]),
        },
        "holdout_labels": record["held_clean" if replay.holdout == "trusted" else "held_given"][:count],
        "holdout_views": {
            "final": normalise(record["held_final"][:count]),
            "mean": normalise(over_time),
            "scored": normalise(over_time),
            "last": normalise(looks[moments > moments[-1] - 1 + 1e-9].mean(0)),
        },
        "trusted": replay.holdout == "trusted",
        "features": record["features"],
        "holdout_features": record["held_features"][:count],
    }


def normalise(logs: NDArray[Any]) -> Floats:
    """Log probabilities whose probabilities sum to 1."""
    logs = logs.astype(np.float64)
    largest = logs.max(1, keepdims=True)
    return np.asarray(logs - largest - np.log(np.exp(logs - largest).sum(1, keepdims=True)))


def mean_visits(visits: NDArray[Any], chosen: NDArray[np.bool_]) -> Floats:
    """Mean over those visits ``[E, N, C]`` that are chosen ``[E, N]``; NaN for examples without one."""
    total = np.where(chosen[:, :, None], visits, 0).sum(0, dtype=np.float64)
    number = chosen.sum(0)
    return np.asarray(total / np.where(number > 0, number, np.nan)[:, None])


def mean_loss_of(visits: NDArray[Any], chosen: NDArray[np.bool_], labels: NDArray[np.int64]) -> Floats:
    """Mean cross-entropy over those visits that are chosen; NaN for examples without one."""
    loss = -visits[:, np.arange(len(labels)), labels].astype(np.float64)
    total, number = np.where(chosen, loss, 0).sum(0), chosen.sum(0)
    return np.asarray(total / np.where(number > 0, number, np.nan))


def last_scored(visits: NDArray[Any], chosen: NDArray[np.bool_]) -> Floats:
    """The last visit of ``[E, N, C]`` that is chosen ``[E, N]``; the last of all for examples without one."""
    epochs = len(visits)
    last = np.where(chosen.any(0), epochs - 1 - chosen[::-1].argmax(0), epochs - 1)
    return normalise(visits[last, np.arange(visits.shape[1])])


def mean_over_time(looks: Floats, moments: Floats) -> Floats:
    """Mean of log probabilities ``[L, H, C]`` over the training, linear between looks, from a uniform start."""
    start = np.full_like(looks[:1], -np.log(looks.shape[2]))
    values, spans = np.concatenate([start, looks]), np.diff(moments, prepend=0.0)
    return np.asarray((spans[:, None, None] * (values[1:] + values[:-1]) / 2).sum(0) / moments[-1])
