"""What stands between a residual and a step: ``P⁻¹``, prepared once for an operator and applied at every iteration.

Two facts about a preconditioner decide how it may be used, and each class declares them: whether ``P⁻¹`` is symmetric
positive definite (conjugate gradients need that), and whether ``I - P⁻¹H`` contracts by construction (then Richardson
takes whole steps).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sgoif.linalg.operator import LinearOperator

__all__ = ["GivenInverse", "Jacobi", "Preconditioner", "PreparedPreconditioner"]


class PreparedPreconditioner(ABC):
    """``P⁻¹`` for one operator.

    >>> issubclass(GivenInverse, PreparedPreconditioner)
    True
    """

    is_symmetric: ClassVar[bool] = True  # P⁻¹ is symmetric positive definite
    contracts: ClassVar[bool] = False  # the spectral radius of I - P⁻¹H is below 1 for every positive definite H

    @abstractmethod
    def apply(self, residual: Tensor) -> Tensor:
        """Return ``P⁻¹ residual``, ``[P, N] -> [P, N]``. Never waits for the device."""


class Preconditioner(ABC):
    """A recipe for ``P⁻¹``; subclasses are frozen dataclasses of settings.

    >>> from sgoif.linalg import Diagonal
    >>> Jacobi().prepare(Diagonal(torch.tensor([2.0]))).apply(torch.ones(1, 1))
    tensor([[0.5000]])
    """

    @abstractmethod
    def prepare(self, operator: LinearOperator, lambda_max: Tensor | None = None) -> PreparedPreconditioner:
        """Build ``P⁻¹`` for ``operator``; ``lambda_max`` is passed where the caller knows it. May sync."""


@dataclass(frozen=True, slots=True, eq=False)
class GivenInverse(Preconditioner, PreparedPreconditioner):
    """A symmetric positive definite ``P⁻¹`` that the caller already has, whatever the operator.

    >>> from sgoif.linalg import Diagonal
    >>> GivenInverse(Diagonal(torch.tensor([0.5]))).apply(torch.ones(1, 1))
    tensor([[0.5000]])
    """

    inverse: LinearOperator  # P⁻¹

    def prepare(self, operator: LinearOperator, lambda_max: Tensor | None = None) -> GivenInverse:
        return self

    def apply(self, residual: Tensor) -> Tensor:
        return self.inverse.matmul(residual)


@dataclass(frozen=True, slots=True)
class Jacobi(Preconditioner):
    """``P = diag(H)``; entries that are not positive are left alone (1 in their place).

    >>> from sgoif.linalg import Diagonal
    >>> Jacobi().prepare(Diagonal(torch.tensor([4.0, 0.0]))).apply(torch.ones(2, 1)).ravel()
    tensor([0.2500, 1.0000])
    """

    def prepare(self, operator: LinearOperator, lambda_max: Tensor | None = None) -> PreparedPreconditioner:
        diag = operator.diagonal()
        usable = (diag > 0) & torch.isfinite(diag)
        return _Scaling(torch.where(usable, diag, torch.ones_like(diag)).reciprocal())


@dataclass(frozen=True, slots=True, eq=False)
class _Scaling(PreparedPreconditioner):
    factors: Tensor  # [P]

    def apply(self, residual: Tensor) -> Tensor:
        return self.factors[:, None] * residual
