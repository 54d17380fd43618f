"""Regression heads: each value is predicted by fits to other examples, and the heads are averaged by likelihood.

Given values are noisy, and one that is ten times too large would own a least-squares fit. So heads take weights, and
everything that is chosen here (the penalty, the share of each head) is chosen by a Student likelihood of values that
the fit has not seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from sgoif.judging.folds import NUM_FOLDS, Fold
from sgoif.scanning.tabular import MOST_COLUMNS
from sgoif.types import Floats

__all__ = ["Blend", "Regressor", "blend_heads", "make_regressors", "student_loss"]

_PENALTIES = tuple(10.0**power for power in (-2, -1, 0, 1, 2, 3, 4))  # of ridge, per unit of a feature's variance
_WAVES, _SCALE = 400, 0.7  # of random Fourier features; the scale by one over the root of the columns
_TREES, _LEAF = 60, 3  # for each prediction; examples in a leaf at least
_MOST_ROWS = 50_000  # that one fit takes
_SCORED = 20_000  # examples at most by which penalties and shares are chosen
_FREEDOM = 4.0  # degrees of the likelihood by which heads are compared
_AT_ONCE = 50_000  # rows predicted together


class Regressor(Protocol):
    """A regression that predicts each example by a fit to others."""

    name: str

    def fit(self, values: Floats, weights: Floats) -> Floats:
        """Predictions, ``[N]``, each by fits that have not seen the example."""


@dataclass(frozen=True, slots=True)
class Blend:
    """Predictions of several heads as one."""

    predicted: Floats  # [N]
    shares: dict[str, float]  # of the heads


def make_regressors(inputs: Tensor, folds: Sequence[Fold], *, seed: int = 0, has_trees: bool = True) -> list[Regressor]:
    """The heads for standardised features; tables of few columns have trees besides, which take most of the time."""
    heads: list[Regressor] = [RidgeHead(inputs, folds), RidgeHead(inputs, folds, "fourier", _make_waves(inputs, seed))]
    is_table = has_trees and inputs.shape[1] <= MOST_COLUMNS
    return [*heads, TreeRegressor(inputs, folds, seed)] if is_table else heads


def blend_heads(heads: Sequence[Regressor], values: Floats, weights: Floats) -> Blend:
    """Fit all heads and average them, by the shares under which unseen values are likeliest."""
    found = np.stack([head.fit(values, weights) for head in heads])
    some = _some(len(values))
    grid = _simplex(len(heads), 10)
    losses = [student_loss(values[some] - share @ found[:, some], weights[some]) for share in grid]
    share = grid[int(np.argmin(losses))]
    return Blend(share @ found, {head.name: round(float(a), 2) for head, a in zip(heads, share, strict=True)})


def student_loss(residuals: Floats, weights: Floats | None = None) -> float:
    """Mean negative log likelihood of residuals under a Student density of the scale that suits them best."""
    known = np.ones(len(residuals)) if weights is None else weights
    square = residuals**2
    total = known.sum()
    scale = max(float(np.median(np.abs(residuals))) ** 2, 1e-12 * float(square.mean()), 1e-300)
    for _ in range(20):  # expectation-maximisation of the scale
        scale = float((known * square * (_FREEDOM + 1) / (_FREEDOM + square / scale)).sum() / total)
        scale = max(scale, 1e-300)
    spread = np.log1p(square / (scale * _FREEDOM)) * (_FREEDOM + 1) / 2 + 0.5 * math.log(scale)
    return float((known * spread).sum() / total)


class RidgeHead:
    """Ridge regression on features, or on what ``bend`` makes of them.

    All penalties are tried at once: the Gram matrix of the features, or of the examples where these are fewer, is
    decomposed once per fold.
    """

    def __init__(
        self,
        inputs: Tensor,
        folds: Sequence[Fold],
        name: str = "ridge",
        bend: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.name, self.inputs, self.bend = name, inputs, bend
        self.folds = [Fold(_sample_rows(fold.train, number), fold.test) for number, fold in enumerate(folds)]

    def fit(self, values: Floats, weights: Floats) -> Floats:
        """Predictions, ``[N]``, by the penalty under which unseen values are likeliest."""
        found, times = np.zeros((len(_PENALTIES), len(values))), np.zeros(len(values))
        for train, test in self.folds:
            solve = _solve_ridge(self._see(train), values[train.numpy()], weights[train.numpy()])
            for part in test.split(_AT_ONCE):
                found[:, part.numpy()] += solve(self._see(part))
            times[test.numpy()] += 1
        found /= times
        some = _some(len(values))
        losses = [student_loss(values[some] - each[some], weights[some]) for each in found]
        best: Floats = found[int(np.argmin(losses))]
        return best

    def _see(self, rows: Tensor) -> Tensor:
        seen = self.inputs[rows]
        return (seen if self.bend is None else self.bend(seen)).double()


def _solve_ridge(inputs: Tensor, values: Floats, weights: Floats) -> Callable[[Tensor], Floats]:
    """Fit ridge regressions with every penalty; gives what predicts other rows, ``[penalties, n]``."""
    known = torch.from_numpy(weights)[:, None]
    total = known.sum()
    target = torch.from_numpy(values)
    middle, level = (known * inputs).sum(0) / total, float((known[:, 0] * target).sum() / total)
    root = (known / known.mean()).sqrt()
    design, wanted = root * (inputs - middle), root[:, 0] * (target - level)
    is_wide = len(design) < design.shape[1]
    gram = design @ design.mT if is_wide else design.mT @ design
    found, basis = torch.linalg.eigh(gram)
    side = basis.mT @ (wanted if is_wide else design.mT @ wanted)
    shrunk = torch.stack([side / (found.clamp_min(0) + penalty) for penalty in _PENALTIES], 1)
    slopes = basis @ shrunk  # [D or n, penalties]
    slopes = design.mT @ slopes if is_wide else slopes
    return lambda rows: (level + (rows - middle) @ slopes).mT.numpy()


class TreeRegressor:
    """Extremely randomised trees, for tables of few columns. Of folds that repeat the examples the first are used."""

    name = "trees"

    def __init__(self, inputs: Tensor, folds: Sequence[Fold], seed: int = 0) -> None:
        self.inputs, self.seed = inputs.numpy(), seed
        once = folds[:NUM_FOLDS]
        self.folds = [Fold(_sample_rows(fold.train, number), fold.test) for number, fold in enumerate(once)]

    def fit(self, values: Floats, weights: Floats) -> Floats:
        """Predictions, ``[N]``."""
        from sklearn.ensemble import ExtraTreesRegressor

        found = np.zeros(len(values))
        for number, fold in enumerate(self.folds):
            train, test = fold.train.numpy(), fold.test.numpy()
            trees = ExtraTreesRegressor(_TREES, min_samples_leaf=_LEAF, random_state=self.seed + number, n_jobs=1)
            trees.fit(self.inputs[train], values[train], sample_weight=weights[train])
            found[test] = trees.predict(self.inputs[test])
        return found


def _make_waves(inputs: Tensor, seed: int) -> Callable[[Tensor], Tensor]:
    """Columns with random Fourier features of them beside."""
    generator, width = torch.Generator().manual_seed(seed), inputs.shape[1]
    waves = torch.randn(width, _WAVES, generator=generator) * _SCALE / math.sqrt(width)
    phases = 2 * math.pi * torch.rand(_WAVES, generator=generator)
    return lambda rows: torch.cat([rows, (rows @ waves + phases).cos() * math.sqrt(2)], 1)


def _sample_rows(rows: Tensor, number: int) -> Tensor:
    if len(rows) <= _MOST_ROWS:
        return rows
    return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(number))[:_MOST_ROWS]]


def _some(count: int) -> slice | np.ndarray:
    """Examples by which something is chosen: all of them, or a sample."""
    return slice(None) if count <= _SCORED else np.random.default_rng(0).choice(count, _SCORED, replace=False)


def _simplex(count: int, steps: int) -> Floats:
    """Shares of so many heads in steps, ``[m, count]``: one head alone first."""
    if count == 1:
        return np.ones((1, 1))
    parts = [
        np.column_stack([np.full(len(rest), first / steps), rest * (steps - first) / steps])
        for first in range(steps, -1, -1)
        for rest in [_simplex(count - 1, steps - first) if first < steps else np.eye(1, count - 1) * 0]
    ]
    return np.concatenate(parts)
