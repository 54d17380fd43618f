"""A softmax regression on features, cross-fitted, as it is or through a model of the noise.

L-BFGS works on ``U = Rᵀ W``, where ``R Rᵀ = S/C + (l2/n) I`` and ``S`` is the mean of ``x xᵀ``. In these coordinates
the curvature is about the identity, and 20 steps do what takes 100 otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sgoif.judging.folds import NUM_FOLDS, Fold, Predictor, average_folds

__all__ = ["LinearHead", "fit_softmax"]

_GRID = (1000.0, 100.0, 10.0, 1.0)  # of the penalty, strongest first: each fit starts from the one before
_STEPS, _MORE_STEPS = 40, 15
_FEW = 3_000  # examples up to which several folds choose the penalty; beyond, the first one does
_AT_ONCE = 20_000
_IN_CACHE = 1 << 22  # numbers that a fit works on at once
_MOST_WORK = 5e10  # examples x features x classes of one fit; beyond, a sample is fitted


class LinearHead:
    """Softmax regression whose penalty is chosen by the likelihood of labels that it has not seen.

    Args:
        inputs: standardised features, ``[N, D]``.
        num_classes: ``C``.
        folds: of the examples.
        name: of the head.
        bend: what the regression sees of features; they themselves if left out.
    """

    def __init__(
        self,
        inputs: Tensor,
        num_classes: int,
        folds: Sequence[Fold],
        name: str = "linear",
        bend: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.name, self.num_classes, self.bend = name, num_classes, bend
        self.inputs = inputs = inputs if bend is None else bend(inputs)
        self.folds = [Fold(_sample(fold.train, inputs.shape[1] * num_classes), fold.test) for fold in folds]
        self.weights: list[Tensor | None] = [None] * len(folds)
        self._first: Tensor | None = None  # of the first fold, as it was fitted at first
        self._grams: dict[int, Tensor] = {}  # XᵀX of each fold
        self.penalty = _GRID[0]

    def fit(self, given: Tensor) -> Tensor:
        """Log probabilities of the given class, ``[N, C]``, each by a regression that was not fitted on the example."""
        chosen = range(min(NUM_FOLDS, len(self.folds)) if len(given) <= _FEW else 1)
        best, tried = -float("inf"), dict[int, Tensor]()
        found: dict[int, Tensor] = {}
        for penalty in _GRID:
            likelihood = 0.0
            for number in chosen:
                fold = self.folds[number]
                tried[number] = self._fit(number, given, penalty, start=tried.get(number))
                log_p = _predict(self.inputs[fold.test], tried[number])
                likelihood += float(log_p.gather(1, given[fold.test, None]).sum())
            if likelihood > best:
                best, self.penalty, found = likelihood, penalty, dict(tried)
        for number in range(len(self.folds)):
            weights = found.get(number)
            self.weights[number] = self._fit(number, given, self.penalty) if weights is None else weights
        self._first = self.weights[0]
        return self._out_of_fold()

    def refit(
        self, given: Tensor, transition: Tensor, posterior: Callable[[Tensor], Tensor], *, restart: bool
    ) -> Tensor:
        """Log probabilities of the true class: fitted so that, through the transition, the given ones come out."""
        del posterior
        steps = _STEPS if restart else _MORE_STEPS
        for number in range(len(self.folds)):
            # what the plain fit put between two confused classes hardly fades: the first refit starts from zero
            start = None if restart else self.weights[number]
            self.weights[number] = self._fit(number, given, self.penalty, transition, start, steps)
        return self._out_of_fold()

    def predictor(self, *, is_refitted: bool) -> Predictor:
        """Predict further examples by the first fold's fit."""
        weights = self.weights[0] if is_refitted else self._first
        assert weights is not None

        def predict(inputs: Tensor) -> Tensor:
            return _predict(inputs if self.bend is None else self.bend(inputs), weights)

        return predict

    def _fit(
        self,
        number: int,
        given: Tensor,
        penalty: float,
        transition: Tensor | None = None,
        start: Tensor | None = None,
        steps: int = _STEPS,
    ) -> Tensor:
        train = self.folds[number].train
        inputs = self.inputs[train]
        if number not in self._grams:
            self._grams[number] = inputs.mT @ inputs
        gram = self._grams[number]
        return fit_softmax(inputs, given[train], self.num_classes, penalty, transition, start, steps, gram)

    def _out_of_fold(self) -> Tensor:
        assert all(weights is not None for weights in self.weights)
        parts = ((fold.test, weights) for fold, weights in zip(self.folds, self.weights, strict=True))
        return average_folds(
            ((some, _predict(self.inputs[some], weights)) for test, weights in parts for some in test.split(_AT_ONCE)),  # type: ignore[arg-type]
            len(self.inputs),
            self.num_classes,
        )


def _predict(inputs: Tensor, weights: Tensor) -> Tensor:
    return torch.addmm(weights[-1], inputs, weights[:-1]).log_softmax(1)


def _sample(rows: Tensor, work: int) -> Tensor:
    most = int(_MOST_WORK // work)
    if len(rows) <= most:
        return rows
    return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:most].sort().values]


def fit_softmax(
    inputs: Tensor,
    given: Tensor,
    num_classes: int,
    penalty: float,
    transition: Tensor | None = None,
    start: Tensor | None = None,
    steps: int = _STEPS,
    gram: Tensor | None = None,
) -> Tensor:
    """Minimise ``mean(-log Σ_k P(k | x) t_k) + penalty/(2n) |W|²``; returns ``[D + 1, C]``, the bias last.

    Args:
        inputs: standardised, ``[n, D]``.
        given: labels, ``[n]``.
        num_classes: ``C``.
        penalty: of squared weights, in units of one example.
        transition: ``P(given | true)``, ``[C, C]``, whose column of the given class is ``t``; that class alone if left
            out.
        start: weights to begin with; zero if left out.
        steps: of L-BFGS at most.
        gram: ``XᵀX``, where it is known already.
    """
    count, width = inputs.shape
    gram = inputs.mT @ inputs if gram is None else gram
    root = torch.linalg.cholesky(gram / (count * num_classes) + (penalty / count + 1e-6) * torch.eye(width))
    unit, step = num_classes**0.5, max(1, _IN_CACHE // num_classes)  # of the bias; examples at once
    free = torch.zeros(width + 1, num_classes)
    if start is not None:
        free[:-1], free[-1] = root.mT @ start[:-1], start[-1] / unit
    free.requires_grad_(True)
    optimizer = torch.optim.LBFGS(
        [free], max_iter=steps, history_size=10, line_search_fn="strong_wolfe", tolerance_grad=1e-5 / count**0.5
    )

    def weights() -> Tensor:
        found: Tensor = torch.linalg.solve_triangular(root.mT, free[:-1], upper=True)
        return found

    @torch.no_grad()
    def closure() -> Tensor:
        now, loss = weights(), 0.0
        slope, bias = penalty / count * now, torch.zeros(1, num_classes)
        for start in range(0, count, step):
            some = slice(start, start + step)
            log_p = torch.addmm(free[-1] * unit, inputs[some], now).log_softmax(1)
            residual, labels = log_p.exp(), given[some, None]
            if transition is None:
                loss -= float(log_p.gather(1, labels).sum())
                residual.scatter_add_(1, labels, torch.full_like(labels, -1, dtype=residual.dtype))
            else:
                joint = residual * transition.mT[labels[:, 0]]
                total = joint.sum(1, keepdim=True).clamp_min(1e-12)
                loss -= float(total.log().sum())
                residual -= joint.div_(total)
            slope = torch.addmm(slope, inputs[some].mT, residual, alpha=1 / count)
            bias += residual.sum(0) * (unit / count)
        free.grad = torch.cat([torch.linalg.solve_triangular(root, slope, upper=False), bias])
        return loss / count + 0.5 * penalty / count * now.square().sum()

    optimizer.step(closure)
    with torch.no_grad():
        return torch.cat([weights(), free[-1:] * unit]).detach()
