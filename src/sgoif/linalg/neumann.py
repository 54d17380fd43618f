"""The preconditioned Neumann series, in the order that is right when ``P`` and ``H`` do not commute.

``H⁻¹ = Σ_k (I - P⁻¹H)^k P⁻¹``: the powers stand **left** of ``P⁻¹``. (The paper's formula for ``φ_K`` has them on the
other side, where the sum is ``P⁻¹H⁻¹P``, wrong unless the two commute; its own proof uses the order here.) In residual
form the terms are ``d_k = P⁻¹ r_{k-1}``, ``φ_k = φ_{k-1} + d_k``, ``r_k = r_{k-1} - H d_k``: one product per order,
residual included.

Lemma 4(a) bounds the truncation: ``‖H⁻¹g - φ_K‖ ≤ ‖P⁻¹‖ q^{K+1} ‖g‖ / (1 - q)`` with ``q = ‖I - P⁻¹H‖ < 1``, all in one
operator norm that is induced by the vector norm used. A spectral radius below 1 is weaker: it gives ``q < 1`` in *some*
norm only.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sgoif.errors import LinalgError
from sgoif.linalg.operator import LinearOperator
from sgoif.linalg.preconditioner import Preconditioned, Preconditioner, PreparedPreconditioner
from sgoif.linalg.progress import ColumnProgress
from sgoif.linalg.solver import Solution, Solver
from sgoif.linalg.spectrum import lambda_max, safe_reciprocal

__all__ = ["Neumann"]


@dataclass(frozen=True, slots=True, eq=False)
class _Scaling(PreparedPreconditioner):
    factor: Tensor  # 0-d

    def apply(self, residual: Tensor) -> Tensor:
        return self.factor * residual


@dataclass(frozen=True, slots=True, eq=False)
class Neumann(Solver[Preconditioned]):
    """A Neumann series whose order adapts to each column.

    The order rises while each term lowers the residual by at least ``required_fall``; a smaller fall ends the column as
    ``UNFINISHED``, and the first rise ends it as ``GREW`` with the sum before that term.

    >>> from sgoif.linalg import Diagonal
    >>> import torch
    >>> solver = Neumann(max_order=30)
    >>> prepared = solver.prepare(Diagonal(torch.tensor([1.0, 2.0])))
    >>> solver.solve(prepared, torch.ones(2, 1)).value.ravel().round(decimals=2)
    tensor([1.0000, 0.5000])

    Args:
        preconditioner: ``P⁻¹``; ``None`` means ``1/λ_max(H)``.
        max_order: the largest ``K``; the sum then has ``K + 1`` terms and cost as many products.
        required_fall: the share of the residual that a term must remove to be followed by another.
        tolerance: relative residual at which a column has converged.
        check_every: asks the device every so many orders whether to stop early; 0 never asks.
    """

    preconditioner: Preconditioner | None = None
    max_order: int = 10
    required_fall: float = 0.1
    tolerance: float = 1e-3
    check_every: int = 0

    def __post_init__(self) -> None:
        if self.max_order < 0 or not 0 <= self.required_fall < 1:
            raise LinalgError(
                f"Neumann needs max_order >= 0 and required_fall in [0, 1), got {self.max_order} and "
                f"{self.required_fall}."
            )

    def prepare(self, operator: LinearOperator) -> Preconditioned:
        """Prepare ``P⁻¹``; without a preconditioner, find ``λ_max``."""
        if self.preconditioner is None:
            return Preconditioned(operator, _Scaling(safe_reciprocal(lambda_max(operator))))
        return Preconditioned(operator, self.preconditioner.prepare(operator))

    def solve(self, prepared: Preconditioned, rhs: Tensor, initial: Tensor | None = None) -> Solution:
        """Sum the series of each column to its own order; from ``initial``, add the series of its residual."""
        progress = ColumnProgress(prepared.operator, rhs, initial, tolerance=self.tolerance)
        residual = progress.residual
        for _ in progress.iterate(self.max_order + 1, self.check_every):
            before = progress.relative
            term = prepared.precondition(residual)
            residual = residual - prepared.operator.matmul(term)
            after = progress.measure(residual)
            has_slowed = after > (1 - self.required_fall) * before
            residual = progress.advance(progress.value + term, residual, failed=after > before, stop=has_slowed)
        return progress.solution()
