"""Multinomial logistic regression, quickly: L-BFGS in coordinates where the problem is nearly round.

With standardised rows ``X``, ``S = X'X/n`` and ``C`` classes, the Hessian of the mean cross-entropy is about ``S/C``
for each class, plus ``l2/n`` for the penalty. With ``S/C + l2/n I = R R'`` the fit runs over ``U = R'W``, and starts
where a related fit ended. The minimum is the same, and there is only one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MAX_STEPS = 300
GRADIENT, CHANGE = 5e-5, 1e-6  # stop below this largest entry of the gradient over U, or this change of the mean loss


@dataclass(frozen=True, slots=True)
class Logistic:
    """A fitted model, with the scaling of its rows."""

    mean: Tensor  # [D]
    scale: Tensor  # [D]
    weights: Tensor  # [D, C]
    bias: Tensor  # [C]

    def log_probabilities(self, rows: Tensor) -> Tensor:
        """Log probabilities of the classes, ``[N, C]``."""
        return torch.addmm(self.bias, (rows - self.mean) / self.scale, self.weights).log_softmax(1)


class Regression:
    """The fits of one train set: what they share is computed once."""

    def __init__(self, rows: Tensor, labels: Tensor, num_classes: int) -> None:
        self.mean, self.scale = rows.mean(0), rows.std(0) + 1e-6
        self.scaled, self.labels, self.num_classes = (rows - self.mean) / self.scale, labels, num_classes
        self.curvature = (self.scaled.mT @ self.scaled).double() / (len(rows) * num_classes)

    def fit(self, l2: float, start: Logistic | None = None) -> Logistic:
        """Minimise the mean cross-entropy plus ``l2/2n`` times the squared weights; the bias is free."""
        penalty = l2 / len(self.labels)
        eye = torch.eye(len(self.curvature), dtype=torch.float64)
        root = torch.linalg.cholesky(self.curvature + penalty * eye).to(self.scaled.dtype)
        if start is None:
            turned, bias = torch.zeros(len(root), self.num_classes), torch.zeros(self.num_classes)
        else:
            turned, bias = root.mT @ start.weights, start.bias.clone()
        turned.requires_grad_()
        bias.requires_grad_()
        optimizer = torch.optim.LBFGS(
            [turned, bias],
            max_iter=MAX_STEPS,
            history_size=20,
            tolerance_grad=GRADIENT,
            tolerance_change=CHANGE,
            line_search_fn="strong_wolfe",
        )

        def closure() -> Tensor:
            optimizer.zero_grad()
            weights = torch.linalg.solve_triangular(root.mT, turned, upper=True)
            loss = torch.nn.functional.cross_entropy(torch.addmm(bias, self.scaled, weights), self.labels)
            loss = loss + 0.5 * penalty * weights.square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        weights = torch.linalg.solve_triangular(root.mT, turned.detach(), upper=True)
        return Logistic(self.mean, self.scale, weights, bias.detach())
