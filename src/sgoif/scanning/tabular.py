"""Heads for tables of few columns, where classes need not lie on two sides of a plane."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sgoif.judging.folds import NUM_FOLDS, Fold, Predictor, average_folds
from sgoif.judging.linear import LinearHead
from sgoif.judging.pool import recover_logs

__all__ = ["MOST_COLUMNS", "TreeHead", "make_fourier_head"]

MOST_COLUMNS = 100  # of a table; embeddings have more
_WAVES, _SCALE = 600, 0.7  # of random Fourier features; the scale by one over the root of the columns
_TREES = 200  # for each prediction, over all folds that it comes from
_MOST_ROWS = 50_000  # that trees are grown on
_DOUBT = 1.0  # trees that are spread over all classes


def make_fourier_head(inputs: Tensor, num_classes: int, folds: Sequence[Fold]) -> LinearHead:
    """Softmax regression on the columns and random Fourier features of them: a smooth head that bends."""
    generator, width = torch.Generator().manual_seed(0), inputs.shape[1]
    waves = torch.randn(width, _WAVES, generator=generator) * _SCALE / math.sqrt(width)
    phases = 2 * math.pi * torch.rand(_WAVES, generator=generator)

    def bend(inputs: Tensor) -> Tensor:
        return torch.cat([inputs, (inputs @ waves + phases).cos() * math.sqrt(2)], 1)

    return LinearHead(inputs, num_classes, folds, "fourier", bend)


class TreeHead:
    """Extremely randomised trees, grown once: what they say of the true class is recovered from their predictions."""

    name = "trees"

    def __init__(self, inputs: Tensor, num_classes: int, folds: Sequence[Fold]) -> None:
        self.inputs, self.num_classes, self.folds = inputs.numpy(), num_classes, folds
        self.log_p, self.transition = torch.zeros(0), torch.eye(num_classes)
        self.trees: Any = None  # of the first fold

    def fit(self, given: Tensor) -> Tensor:
        """Log probabilities of the given class, ``[N, C]``."""
        self.log_p = average_folds(self._grow(given), len(self.inputs), self.num_classes)
        return self.log_p

    def refit(
        self, given: Tensor, transition: Tensor, posterior: Callable[[Tensor], Tensor], *, restart: bool
    ) -> Tensor:
        """Log probabilities of the true class, ``[N, C]``."""
        del given, posterior, restart
        self.transition = transition
        return recover_logs(self.log_p, transition)

    def predictor(self, *, is_refitted: bool) -> Predictor:
        """Predict further examples by the first fold's trees."""

        def predict(inputs: Tensor) -> Tensor:
            log_p = self._predict(self.trees, inputs.numpy())
            return recover_logs(log_p, self.transition) if is_refitted else log_p

        return predict

    def _grow(self, given: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        from sklearn.ensemble import ExtraTreesClassifier

        size = _TREES * NUM_FOLDS // len(self.folds)
        for number, (train, test) in enumerate(self.folds):
            if len(train) > _MOST_ROWS:
                chosen = torch.randperm(len(train), generator=torch.Generator().manual_seed(number))[:_MOST_ROWS]
                train = train[chosen]
            trees = ExtraTreesClassifier(size, random_state=number, n_jobs=1)
            trees.fit(self.inputs[train], given[train].numpy())
            self.trees = trees if number == 0 else self.trees
            yield test, self._predict(trees, self.inputs[test])

    def _predict(self, trees: Any, inputs: NDArray[np.float32]) -> Tensor:
        share = torch.zeros(len(inputs), self.num_classes, dtype=torch.float64)
        share[:, trees.classes_] = torch.from_numpy(trees.predict_proba(inputs))
        size = len(trees.estimators_)
        return ((share * size + _DOUBT / self.num_classes) / (size + _DOUBT)).log().float()
