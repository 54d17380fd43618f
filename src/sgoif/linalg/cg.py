"""Preconditioned conjugate gradients: the most accuracy per product when a few anchors deserve a better solve.

All columns advance together but each has its own step lengths. In exact arithmetic a column ends after as many steps as
``P⁻¹H`` has distinct eigenvalues; the error shrinks in the ``H``-norm at every step, the residual norm need not.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sgoif.linalg.operator import LinearOperator
from sgoif.linalg.preconditioner import Preconditioned, Preconditioner
from sgoif.linalg.progress import ColumnProgress
from sgoif.linalg.solver import Solution, Solver, SolveStatus

__all__ = ["ConjugateGradient"]

_DRIFT = 10.0  # how far the true residual may lie above the tolerance met by the recurrence, which rounding lets drift


@dataclass(frozen=True, slots=True, eq=False)
class ConjugateGradient(Solver[Preconditioned]):
    """Conjugate gradients for positive definite operators.

    A direction of non-positive curvature shows that the operator is not positive definite: that column ends as ``GREW``
    with its best iterate. The residual reported is the true one, for which one product is spent at the end.

    >>> from sgoif.linalg import Diagonal
    >>> solver = ConjugateGradient(max_iterations=3)
    >>> solver.solve(solver.prepare(Diagonal(torch.tensor([1.0, 2.0, 4.0]))), torch.ones(3, 1)).value.ravel()
    tensor([1.0000, 0.5000, 0.2500])

    Args:
        preconditioner: a symmetric positive definite ``P⁻¹``, such as :class:`sgoif.linalg.NystromPreconditioner`.
        max_iterations: budget, one product each, beside the final one.
        tolerance: relative residual at which a column has converged.
        check_every: asks the device every so many iterations whether to stop early; 0 never asks.
    """

    preconditioner: Preconditioner | None = None
    max_iterations: int = 10
    tolerance: float = 1e-3
    check_every: int = 0

    def prepare(self, operator: LinearOperator) -> Preconditioned:
        """Prepare the preconditioner."""
        prepared = None if self.preconditioner is None else self.preconditioner.prepare(operator)
        return Preconditioned(operator, prepared)

    def solve(self, prepared: Preconditioned, rhs: Tensor, initial: Tensor | None = None) -> Solution:
        """Iterate until each column has converged or failed, or the budget is spent."""
        progress = ColumnProgress(prepared.operator, rhs, initial, tolerance=self.tolerance)
        residual = progress.residual
        direction = conjugate = prepared.precondition(residual)
        energy = (residual * conjugate).sum(dim=0)  # rᵀP⁻¹r, [N]
        for _ in progress.iterate(self.max_iterations, self.check_every):
            image = prepared.operator.matmul(direction)
            curvature = (direction * image).sum(dim=0)  # pᵀHp, [N]
            length = torch.where(progress.active, energy / curvature, torch.zeros_like(energy))
            value = progress.value + length * direction
            residual = residual - length * image
            residual = progress.advance(value, residual, failed=(curvature <= 0) | (energy <= 0))
            conjugate = prepared.precondition(residual)
            previous, energy = energy, (residual * conjugate).sum(dim=0)
            direction = torch.where(
                progress.active, conjugate + (energy / previous) * direction, torch.zeros_like(direction)
            )
        self._measure_again(prepared, progress)
        return progress.solution(extra_products=1)

    def _measure_again(self, prepared: Preconditioned, progress: ColumnProgress) -> None:
        """Replace the recurrence's residual by the true one, and take back a convergence that it does not bear out."""
        true = progress.measure(progress.rhs - prepared.operator.matmul(progress.value))
        judged = progress.status <= SolveStatus.UNFINISHED
        progress.relative = torch.where(judged & torch.isfinite(true), true, progress.relative)
        early = judged & (progress.status == SolveStatus.CONVERGED) & ~(true <= _DRIFT * self.tolerance)
        # A tolerance below rounding cannot be asked of the true residual.
        rounding = true <= 100 * torch.finfo(true.dtype).eps
        progress.status = torch.where(early & ~rounding, int(SolveStatus.UNFINISHED), progress.status).to(torch.int8)
