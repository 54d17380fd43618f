"""A two-level preconditioner: solve exactly inside a small subspace, smooth outside it.

Slow modes of Richardson are the small eigenvalues of ``H`` that a right-hand side excites. Given a basis ``Q`` of a few
such directions, the coarse correction ``y = Q E⁻¹ Qᵀ r`` with ``E = QᵀHQ`` removes the error there, and one Richardson
step smooths what is left of the residual::

    apply(r) = y + ρ (r - H y),      y = Q E⁻¹ Qᵀ r,      ρ = 1/λ_max(H)

With ``HQ`` stored this costs no product. One whole step ``φ += apply(g - Hφ)`` propagates the error by
``(I - ρH)(I - Q E⁻¹ QᵀH)``. The right factor is an ``H``-orthogonal projection and the left one contracts in the
``H``-norm, so the product contracts **for any full-rank Q**: a stale basis is slower, never unstable.

The additive form ``P⁻¹ = Q E⁻¹ Qᵀ + ρ (I - QQᵀ)`` agrees with this one when ``Q`` spans an invariant subspace of ``H``.
Otherwise its two parts correct the same error twice: eigenvalues of ``P⁻¹H`` rise up to 2, where a whole step stops
contracting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sgoif.errors import LinalgError
from sgoif.linalg.factor import CholeskyFactor, cholesky
from sgoif.linalg.operator import LinearOperator
from sgoif.linalg.preconditioner import Preconditioner, PreparedPreconditioner
from sgoif.linalg.spectrum import lambda_max as find_lambda_max
from sgoif.linalg.spectrum import safe_reciprocal

__all__ = ["PreparedTwoLevel", "TwoLevel"]


@dataclass(frozen=True, slots=True, eq=False)
class PreparedTwoLevel(PreparedPreconditioner):
    """The coarse problem of one basis for one operator.

    ``P⁻¹`` is not symmetric: for Richardson and Neumann, not for conjugate gradients.
    """

    is_symmetric: ClassVar[bool] = False
    contracts: ClassVar[bool] = True

    basis: Tensor  # Q, [P, r], orthonormal
    image: Tensor  # HQ, [P, r]
    coarse: CholeskyFactor  # of E = QᵀHQ, [r, r]
    rho: Tensor  # ρ, 0-d

    def apply(self, residual: Tensor) -> Tensor:
        coefficients = self.coarse.solve(self.basis.mT @ residual)  # E⁻¹ Qᵀ r, [r, N]
        # Without a positive definite E there is no coarse correction, and smoothing alone remains.
        coefficients = torch.where(self.coarse.ok, coefficients, torch.zeros_like(coefficients))
        return self.basis @ coefficients + self.rho * (residual - self.image @ coefficients)


@dataclass(frozen=True, slots=True, eq=False)
class TwoLevel(Preconditioner):
    """Coarse correction in the span of ``basis``, then one Richardson smoothing.

    Preparing costs a QR (``O(Pr²)``), one product with ``r`` columns and ``λ_max`` where the caller does not know it.

    >>> from sgoif.linalg import Diagonal, Richardson
    >>> operator = Diagonal(torch.tensor([1.0, 1e-4]))
    >>> solver = Richardson(preconditioner=TwoLevel(torch.tensor([[0.0], [1.0]])), max_iterations=3)
    >>> solver.solve(solver.prepare(operator), torch.ones(2, 1)).worst_status.name
    'CONVERGED'
    """

    basis: Tensor  # [P, r], orthonormalised by `prepare`

    def __post_init__(self) -> None:
        if self.basis.ndim != 2 or not 1 <= self.basis.shape[1] <= self.basis.shape[0]:
            raise LinalgError(
                f"TwoLevel needs a basis [P, r] with 1 <= r <= P, got {tuple(self.basis.shape)}; "
                f"pass one column per direction."
            )

    def prepare(self, operator: LinearOperator, lambda_max: Tensor | None = None) -> PreparedTwoLevel:
        """Orthonormalise the basis and factorise ``QᵀHQ``. A non-finite basis is replaced by unit vectors."""
        basis = operator.check_columns(self.basis)
        finite = torch.isfinite(basis).all()
        units = torch.eye(*basis.shape, dtype=basis.dtype, device=basis.device)
        basis, _ = torch.linalg.qr(torch.where(finite, basis, units))
        image = operator.matmul(basis)
        largest = find_lambda_max(operator) if lambda_max is None else lambda_max
        return PreparedTwoLevel(basis, image, cholesky(basis.mT @ image), safe_reciprocal(largest))
