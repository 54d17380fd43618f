"""Streams as positions of images, ``[S, T, B]``: usual ones, and ones that change.

A pass draws each of its images once. A window inside a pass and a calibration of other images are then two plain draws
from one population, for which alone a rate is promised; an endless stream over a finite pool would not be: the pool's
own mean is off as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["LABEL_SHIFTS", "SHARES", "Positions", "drawn", "passes", "sums_of", "switched"]

Positions = NDArray[np.int64]

SHARES = (0.01, 0.02, 0.05, 0.1, 0.2)  # of images from elsewhere
# Weights of the ten classes.
LABEL_SHIFTS: Mapping[str, Callable[[np.random.Generator], NDArray[np.float64]]] = {
    "one class doubled": lambda rng: 1.0 + np.eye(10)[rng.integers(10)],
    "half of the classes gone": lambda rng: (rng.permutation(10) < 5).astype(np.float64),
    "Dirichlet(10)": lambda rng: rng.dirichlet(np.full(10, 10.0)),
}


def passes(pool: Positions, num: int, batch_size: int, rng: np.random.Generator) -> Positions:
    """Passes over the pool, each in an order of its own: ``[num, len(pool) // batch_size, batch_size]``."""
    length = len(pool) // batch_size
    orders = np.argsort(rng.random((num, len(pool))), 1)[:, : length * batch_size]
    return pool[orders].reshape(num, length, batch_size)


def drawn(pool: Positions, num: int, length: int, batch_size: int, rng: np.random.Generator) -> Positions:
    """Pass after pass, as long as it takes: ``[num, length, batch_size]``."""
    per_pass = len(pool) // batch_size
    count = -(-length // per_pass)
    return passes(pool, num * count, batch_size, rng).reshape(num, count * per_pass, batch_size)[:, :length]


def switched(
    before: Positions, after: Positions, share: NDArray[np.float64], rng: np.random.Generator
) -> Positions:  # [S, T, B], [S, T, B], [T]
    """Take images of the second with the probability that each batch has."""
    return np.where(rng.random(before.shape) < share[None, :, None], after, before)


def sums_of(rows: Tensor, positions: Positions) -> NDArray[np.float64]:
    """Sums over batches, ``[S, T, K]``."""
    streams, length, _ = positions.shape
    sums = F.embedding_bag(torch.from_numpy(positions.reshape(streams * length, -1)), rows, mode="sum")
    return sums.double().view(streams, length, -1).numpy()
