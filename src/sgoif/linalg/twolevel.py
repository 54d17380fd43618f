"""A two-level preconditioner: solve exactly inside a small subspace, smooth outside it.

Given a basis ``Q`` of a few directions, the coarse correction ``Q E⁻¹ Qᵀ r`` with ``E = QᵀHQ`` removes the error there,
and one Richardson step smooths what is left, without bringing any of it back::

    P⁻¹ = Q E⁻¹ Qᵀ + ρ (I - Π)(I - Π)ᵀ,      Π = Q E⁻¹ QᵀH,      ρ = 1/λ_max(H - HΠ)

With ``HQ`` stored this costs no product. One whole step ``φ += P⁻¹ (g - Hφ)`` propagates the error by
``(I - Π)(I - ρH)(I - Π)``: ``Π`` is an ``H``-orthogonal projection, and on the rest the eigenvalues are ``1 - ρλ`` with
``λ`` those of ``H - HΠ``. So a step contracts in the ``H``-norm **for any full-rank Q**: a stale basis is slower, never
unstable. Two kinds of basis help. Directions of small eigenvalues are the slow modes of Richardson. Directions of the
largest ones let ``ρ`` rise to the reciprocal of the next eigenvalue.

The additive form ``Q E⁻¹ Qᵀ + ρ (I - QQᵀ)`` agrees with this one when ``Q`` spans an invariant subspace of ``H``.
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
from sgoif.linalg.operator import LinearOperator, StoredOperator
from sgoif.linalg.preconditioner import Preconditioner, PreparedPreconditioner
from sgoif.linalg.spectrum import lambda_max as find_lambda_max
from sgoif.linalg.spectrum import safe_reciprocal

__all__ = ["PreparedTwoLevel", "TwoLevel"]


@dataclass(frozen=True, slots=True, eq=False)
class PreparedTwoLevel(PreparedPreconditioner):
    """The coarse problem of one basis for one operator."""

    contracts: ClassVar[bool] = True

    basis: Tensor  # Q, [P, r], orthonormal
    image: Tensor  # HQ, [P, r]
    coarse: CholeskyFactor  # of E = QᵀHQ, [r, r]
    rho: Tensor  # ρ, 0-d

    def apply(self, residual: Tensor) -> Tensor:
        inside = self._solve(self.basis.mT @ residual)  # E⁻¹ Qᵀ r, [r, N]
        smoothed = self.rho * (residual - self.image @ inside)
        return self.basis @ (inside - self._solve(self.image.mT @ smoothed)) + smoothed

    def _solve(self, columns: Tensor) -> Tensor:
        """``E⁻¹`` times columns; nothing without a positive definite E, and smoothing alone remains."""
        found = self.coarse.solve(columns)
        return torch.where(self.coarse.ok, found, torch.zeros_like(found))


@dataclass(frozen=True, slots=True, eq=False)
class TwoLevel(Preconditioner):
    """Coarse correction in the span of ``basis``, then one Richardson smoothing.

    Preparing costs a QR (``O(Pr²)``), one product with ``r`` columns and a power iteration.

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
        coarse = cholesky(basis.mT @ image)
        rest = find_lambda_max(_Deflated(operator, image, coarse))
        largest = find_lambda_max(operator) if lambda_max is None else lambda_max
        # directions that cover all there is leave nothing but rounding, to which any step will do
        is_left = rest > largest * torch.finfo(basis.dtype).eps
        return PreparedTwoLevel(basis, image, coarse, safe_reciprocal(torch.where(is_left, rest, largest)))


@dataclass(frozen=True, slots=True, eq=False)
class _Deflated(StoredOperator):
    """``H - HQ E⁻¹ QᵀH``: what is left of ``H`` outside the basis."""

    operator: LinearOperator
    image: Tensor  # HQ
    coarse: CholeskyFactor  # of E

    def matmul(self, rhs: Tensor) -> Tensor:
        inside = self.coarse.solve(self.image.mT @ rhs)
        return self.operator.matmul(rhs) - self.image @ torch.where(self.coarse.ok, inside, torch.zeros_like(inside))
