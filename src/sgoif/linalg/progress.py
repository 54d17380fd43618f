"""The books of an iterative solve: which columns still run, which have ended and how, and the best iterate of each.

All decisions are masks on the device. The host learns nothing unless a solver asks it to check, which waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from sgoif.linalg.operator import LinearOperator
from sgoif.linalg.solver import Solution, SolveStats, SolveStatus, check_problem

__all__ = ["ColumnProgress"]


class ColumnProgress:
    """Per-column state of an iteration on ``H φ = g``.

    A column ends by converging, growing beyond ``growth_limit`` times its best residual, or turning non-finite; from
    then on it is frozen. Non-finite columns of ``g`` and of the start are replaced by zeros, so that they cannot
    spread.

    >>> from sgoif.linalg import Diagonal
    >>> progress = ColumnProgress(Diagonal(torch.ones(2)), torch.ones(2, 1), None, tolerance=1e-3)
    >>> for _ in progress.iterate(max_iterations=5, check_every=1):
    ...     _ = progress.advance(torch.ones(2, 1), torch.zeros(2, 1))
    >>> progress.solution().worst_status.name, progress.iterations
    ('CONVERGED', 1)
    """

    def __init__(
        self,
        operator: LinearOperator,
        rhs: Tensor,
        initial: Tensor | None,
        *,
        tolerance: float,
        growth_limit: float = float("inf"),
    ) -> None:
        """Check the problem and measure the start: one product where there is an ``initial``."""
        rhs, initial = check_problem(operator, rhs, initial)
        norms = torch.linalg.vector_norm(rhs, dim=0)
        # An overflowing norm counts as non-finite: no residual could be judged.
        self._finite_rhs = torch.isfinite(norms)
        self.rhs = torch.where(self._finite_rhs, rhs, torch.zeros_like(rhs))
        self._scale = torch.where(self._finite_rhs & (norms > 0), norms, torch.ones_like(norms))
        self._tolerance = tolerance
        self._growth_limit = growth_limit
        self.iterations = 0
        if initial is None:
            self._products = 0
            self.value, self.residual = torch.zeros_like(self.rhs), self.rhs
        else:
            self._products = 1
            usable = torch.isfinite(initial).all(dim=0) & self._finite_rhs
            self.value = torch.where(usable, initial, torch.zeros_like(initial))
            self.residual = self.rhs - operator.matmul(self.value)
        self.relative = self.measure(self.residual)
        finite = torch.isfinite(self.relative)
        converged = finite & (self.relative <= self._tolerance)
        status = torch.full_like(self.relative, SolveStatus.UNFINISHED, dtype=torch.int8)
        status = torch.where(converged, SolveStatus.CONVERGED, status)
        self.status = torch.where(finite & self._finite_rhs, status, SolveStatus.NON_FINITE).to(torch.int8)
        # A start whose product is not finite says nothing about zeros: fall back on those.
        self.value = torch.where(finite, self.value, torch.zeros_like(self.value))
        self.relative = torch.where(finite, self.relative, torch.full_like(self.relative, float("inf")))
        self.active = self.status == SolveStatus.UNFINISHED
        self._start = self.relative
        self._best, self._best_value = self.relative, self.value

    def iterate(self, max_iterations: int, check_every: int) -> Iterator[int]:
        """Count iterations of one product each, until the budget is spent or all columns are found to have ended.

        Every ``check_every`` iterations the host asks whether any column still runs, which **waits for the device**; 0
        never asks.
        """
        for iteration in range(max_iterations):
            yield iteration
            self.iterations = iteration + 1
            if check_every > 0 and self.iterations % check_every == 0 and not bool(self.active.any().item()):
                return

    def measure(self, residual: Tensor) -> Tensor:
        """Return ``|residual| / |g|`` per column."""
        norms: Tensor = torch.linalg.vector_norm(residual, dim=0)
        return norms / self._scale

    def advance(
        self, value: Tensor, residual: Tensor, *, failed: Tensor | None = None, stop: Tensor | None = None
    ) -> Tensor:
        """Take one step of every running column, or end it; return the residual with zeros where a column has ended.

        Args:
            value: the candidate iterates, ``[P, N]``; ignored where the column has ended.
            residual: ``g - H value``, ``[P, N]``.
            failed: columns ``[N]`` whose solver found the operator not positive definite, or the step worse than none.
            stop: columns ``[N]`` that end as unfinished after this step, with its value.
        """
        relative = self.measure(residual)
        finite = torch.isfinite(relative) & torch.isfinite(value).all(dim=0)
        grew = relative > self._growth_limit * self._best
        if failed is not None:
            grew = grew | failed
        accepted = self.active & finite & ~grew
        self._fail(self.active & ~finite, SolveStatus.NON_FINITE)
        self._fail(self.active & finite & grew, SolveStatus.GREW)
        self.value = torch.where(accepted, value, self.value)
        self.relative = torch.where(accepted, relative, self.relative)
        better = accepted & (relative < self._best)
        self._best = torch.where(better, relative, self._best)
        self._best_value = torch.where(better, value, self._best_value)
        converged = accepted & (relative <= self._tolerance)
        self.status = torch.where(converged, SolveStatus.CONVERGED, self.status).to(torch.int8)
        self.active = accepted & ~converged
        if stop is not None:
            self.active = self.active & ~stop
        return torch.where(self.active, residual, torch.zeros_like(residual))

    def fail_if_worse_than_start(self) -> None:
        """Count columns that end above their first residual as grown, and give back their best iterate."""
        self._fail(self.active & (self.relative > self._start), SolveStatus.GREW)

    def solution(self, *, extra_products: int = 0) -> Solution:
        """Close the books."""
        products = self._products + self.iterations + extra_products
        return Solution(self.value, self.status, SolveStats(products, self.iterations, self.relative))

    def _fail(self, columns: Tensor, status: SolveStatus) -> None:
        self.status = torch.where(columns, int(status), self.status).to(torch.int8)
        self.value = torch.where(columns, self._best_value, self.value)
        self.relative = torch.where(columns, self._best, self.relative)
        self.active = self.active & ~columns
