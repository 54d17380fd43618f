"""Weighted logistic regression with one intercept per class, shrunk to a common one.

Newton's method (IRLS) on a ridge-penalised likelihood: strictly convex, so there is one answer, and separated data have
one too. The intercepts of the classes meet only through the slopes, so that block of the Hessian is diagonal and is
eliminated: a step costs ``O(M S² + C S²)``, whether there are ten classes or twenty thousand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sgoif.errors import SgoifError
from sgoif.types import Floats, Ints

__all__ = ["Logistic", "fit_logistic", "sigmoid"]


CLASS_RIDGE = 4.0  # prior precision of a class's intercept: a standard deviation of 0.5
_MAX_STEPS = 100  # Newton from zero needs about ten
_TOLERANCE = 1e-10  # of the gradient, per unit of weight


@dataclass(frozen=True, slots=True)
class Logistic:
    """``logit p = intercept + slopes · x + class_intercepts[class]``."""

    intercept: float
    slopes: Floats  # [S]
    class_intercepts: Floats  # [C], around zero

    def logits(self, inputs: Floats, classes: Ints) -> Floats:
        """Compute log odds, ``[M]``."""
        return np.asarray(self.intercept + inputs @ self.slopes + self.class_intercepts[classes])


def sigmoid(logits: Floats) -> Floats:
    """Compute ``1 / (1 + e^-x)`` without overflow."""
    return np.asarray(0.5 * (1 + np.tanh(0.5 * logits)))


def fit_logistic(
    inputs: Floats,
    targets: Floats,
    weights: Floats,
    classes: Ints,
    num_classes: int,
    ridge: float = 1.0,
    class_ridge: float = CLASS_RIDGE,
    start: Logistic | None = None,
    max_steps: int = _MAX_STEPS,
) -> Logistic:
    """Minimise ``Σ w (log(1 + e^η) - y η) + ridge/2 |slopes|² + class_ridge/2 |class_intercepts|²``.

    Args:
        inputs: ``[M, S]``, standardised, so that one ridge suits all.
        targets: ``y`` in [0, 1], ``[M]``; probabilities will do.
        weights: ``w >= 0``, ``[M]``; the ridges are in units of examples.
        classes: ``[M]``.
        num_classes: ``C``.
        ridge: Prior precision of the slopes.
        class_ridge: Prior precision of a class's deviation from the common intercept; 4 is a standard deviation of 0.5.
        start: Where to begin; the answer does not depend on it.
        max_steps: Fewer steps from a good start give an answer that is nearly the same.

    Raises:
        SgoifError: One of the two outcomes has no weight, or inputs are not finite.

    >>> x, y = np.array([[-1.0], [0.0], [1.0]]), np.array([0.0, 1.0, 1.0])
    >>> found = fit_logistic(x, y, np.ones(3), np.zeros(3, dtype=int), num_classes=1)
    >>> bool(found.slopes[0] > 0)
    True
    """
    total, positive = float(weights.sum()), float(weights @ targets)
    if not 0 < positive < total:
        raise SgoifError(f"need both outcomes, but positives weigh {positive:.3g} of {total:.3g}; flip some labels.")
    if not np.isfinite(inputs).all():
        raise SgoifError(f"{(~np.isfinite(inputs)).sum()} inputs are not finite; fill or drop them first.")
    design = np.column_stack([np.ones(len(inputs)), inputs])
    penalty = np.r_[0.0, np.full(inputs.shape[1], ridge)]
    common, special = np.zeros(design.shape[1]), np.zeros(num_classes)
    common[0] = np.log(positive / (total - positive))
    if start is not None:
        common, special = np.r_[start.intercept, start.slopes], start.class_intercepts.copy()

    def objective(slopes: Floats, offsets: Floats) -> float:
        eta = design @ slopes + offsets[classes]
        fit = weights @ (np.logaddexp(0.0, eta) - targets * eta)
        return float(fit + 0.5 * penalty @ slopes**2 + 0.5 * class_ridge * offsets @ offsets)

    value = objective(common, special)
    for _ in range(max_steps):
        p = sigmoid(design @ common + special[classes])
        error, curvature = weights * (p - targets), weights * p * (1 - p)
        gradient = design.T @ error + penalty * common
        class_gradient = np.bincount(classes, weights=error, minlength=num_classes) + class_ridge * special
        if max(np.abs(gradient).max(), np.abs(class_gradient).max()) <= _TOLERANCE * total:
            break
        step, class_step = _newton_step(design, classes, curvature, penalty, class_ridge, gradient, class_gradient)
        common, special, value = _search(objective, common, special, step, class_step, value)
    return Logistic(float(common[0]), common[1:], special)


def _newton_step(
    design: Floats,
    classes: Ints,
    curvature: Floats,
    penalty: Floats,
    class_ridge: float,
    gradient: Floats,
    class_gradient: Floats,
) -> tuple[Floats, Floats]:
    num_classes = len(class_gradient)
    weighted = design * curvature[:, None]
    hessian = design.T @ weighted + np.diag(penalty + 1e-12 * curvature.sum())
    coupling = np.stack([np.bincount(classes, weights=column, minlength=num_classes) for column in weighted.T])
    block = coupling[0] + class_ridge  # the design's first column is one, so its coupling is the block's diagonal
    schur = hessian - coupling / block @ coupling.T
    step = np.linalg.solve(schur, gradient - coupling @ (class_gradient / block))
    return np.asarray(step), np.asarray((class_gradient - coupling.T @ step) / block)


def _search(
    objective: Callable[[Floats, Floats], float],
    common: Floats,
    special: Floats,
    step: Floats,
    class_step: Floats,
    value: float,
) -> tuple[Floats, Floats, float]:
    """Halve the Newton step until it does not climb; far out on separated data the full one may."""
    size = 1.0
    for _ in range(40):
        found = objective(common - size * step, special - size * class_step)
        if found <= value + 1e-12 * abs(value):
            return common - size * step, special - size * class_step, found
        size /= 2
    return common, special, value
