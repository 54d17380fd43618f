"""The books of an iterative solve: which columns still run, which have ended and how, and the best iterate of each.

All decisions are masks on the device. The host learns nothing unless it asks ``all_ended``, which waits for the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sgoif.linalg.solver import Solution, SolveStats, SolveStatus

__all__ = ["ColumnProgress"]


class ColumnProgress:
    """Per-column state of an iteration on ``H φ = g``.

    A column ends by converging, growing beyond ``growth_limit`` times its best residual, or turning non-finite; from
    then on it is frozen. Non-finite columns of ``g`` and of the start are replaced by zeros, so that they cannot
    spread.

    >>> progress = ColumnProgress(torch.ones(2, 1), None, tolerance=1e-3)
    >>> progress.begin(progress.rhs)
    >>> progress.advance(torch.ones(2, 1), torch.zeros(2, 1))
    >>> progress.solution(products=1, iterations=1).worst_status.name
    'CONVERGED'
    """

    def __init__(
        self, rhs: Tensor, initial: Tensor | None, *, tolerance: float, growth_limit: float = float("inf")
    ) -> None:
        """Start the books; call :meth:`begin` with the residual of ``value`` before the first step."""
        norms = torch.linalg.vector_norm(rhs, dim=0)
        self._finite_rhs = torch.isfinite(
            norms
        )  # an overflowing norm counts as non-finite: no residual could be judged
        self.rhs = torch.where(self._finite_rhs, rhs, torch.zeros_like(rhs))
        self._scale = torch.where(self._finite_rhs & (norms > 0), norms, torch.ones_like(norms))
        self._tolerance = tolerance
        self._growth_limit = growth_limit
        if initial is None:
            self.value = torch.zeros_like(self.rhs)
        else:
            usable = torch.isfinite(initial).all(dim=0) & self._finite_rhs
            self.value = torch.where(usable, initial, torch.zeros_like(initial))

    def begin(self, residual: Tensor) -> None:
        """Record ``g - Hφ`` of the start."""
        self.relative = self.measure(residual)
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

    def measure(self, residual: Tensor) -> Tensor:
        """Return ``|residual| / |g|`` per column."""
        norms: Tensor = torch.linalg.vector_norm(residual, dim=0)
        return norms / self._scale

    def advance(self, value: Tensor, residual: Tensor, *, failed: Tensor | None = None) -> None:
        """Take one step of every running column, or end it.

        Args:
            value: the candidate iterates, ``[P, N]``; ignored where the column has ended.
            residual: ``g - H value``, ``[P, N]``.
            failed: columns ``[N]`` whose solver found the operator not positive definite, or the step worse than none.
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

    def stop(self, columns: Tensor) -> None:
        """End these columns as unfinished, keeping their values."""
        self.active = self.active & ~columns

    def fail_if_worse_than_start(self) -> None:
        """Count columns that end above their first residual as grown, and give back their best iterate."""
        self._fail(self.active & (self.relative > self._start), SolveStatus.GREW)

    def all_ended(self) -> bool:
        """Ask whether no column runs any more. **Waits for the device.**"""
        return not bool(self.active.any().item())

    def solution(self, *, products: int, iterations: int) -> Solution:
        """Close the books."""
        return Solution(self.value, self.status, SolveStats(products, iterations, self.relative))

    def _fail(self, columns: Tensor, status: SolveStatus) -> None:
        self.status = torch.where(columns, int(status), self.status).to(torch.int8)
        self.value = torch.where(columns, self._best_value, self.value)
        self.relative = torch.where(columns, self._best, self.relative)
        self.active = self.active & ~columns


def check_due(iteration: int, check_every: int) -> bool:
    """Say whether the host may look at the columns after this iteration; never when ``check_every`` is 0."""
    return check_every > 0 and (iteration + 1) % check_every == 0
