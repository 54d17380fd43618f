"""Folds of examples, and what a head of features is: a classifier that predicts each example by a fit to others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sgoif.evidence import hash_ids
from sgoif.judging.heads import Head

__all__ = [
    "LOWEST",
    "NUM_FOLDS",
    "FeatureHead",
    "Fold",
    "Predictor",
    "average_folds",
    "make_folds",
]

NUM_FOLDS = 5
LOWEST = -14.0  # log probability: about 1e-6
_MANY = 100_000_000  # numbers from which on predictions are held in half precision
_REPEATED, _MOST_REPEATS = 1_000, 3  # examples that few are brought to by predicting each several times

Predictor = Callable[[Tensor], Tensor]  # features to log probabilities, [n, D] to [n, C]


class Fold(NamedTuple):
    """Examples to fit on, and those to predict."""

    train: Tensor
    test: Tensor


class FeatureHead(Head, Protocol):
    """A head that can predict examples besides those that it was made for."""

    def predictor(self, *, is_refitted: bool) -> Predictor:
        """Predict further examples by one fold's fit, the first or the last one."""


def make_folds(ids: NDArray[Any], labels: NDArray[np.int64]) -> list[Fold]:
    """Split examples into stratified folds by the hash of their ids; few examples are split several times over."""
    repeats = int(np.clip(_REPEATED // max(len(labels), 1), 1, _MOST_REPEATS))
    code, found = hash_ids(ids), []
    for repeat in range(repeats):
        mixed = (code ^ np.uint64(0x9E3779B97F4A7C15 * repeat % 2**64)) * np.uint64(0xBF58476D1CE4E5B9)
        order = np.lexsort((mixed, labels))
        fold = np.empty(len(labels), np.int64)
        fold[order] = (np.arange(len(labels)) + repeat) % NUM_FOLDS
        for number in range(NUM_FOLDS):
            test = torch.from_numpy(np.flatnonzero(fold == number))
            found.append(Fold(torch.from_numpy(np.flatnonzero(fold != number)), test))
    return found


def average_folds(parts: Iterable[tuple[Tensor, Tensor]], count: int, num_classes: int) -> Tensor:
    """Log probabilities by example, ``[N, C]``, from those of parts; where there are several of one, their mean."""
    found = torch.zeros(count, num_classes, dtype=torch.float16 if count * num_classes > _MANY else torch.float32)
    times = torch.zeros(count, 1)
    for rows, log_p in parts:
        found[rows] += log_p.clamp_min(LOWEST).to(found.dtype)
        times[rows] += 1
    return found if bool((times == 1).all()) else found.div_(times)
