"""What stands between a residual and a step: ``P⁻¹``, prepared once for an operator and applied at every iteration.

All are symmetric and positive definite, as conjugate gradients need. Each class declares whether ``I - P⁻¹H`` contracts
by construction: then Richardson takes whole steps.

The randomised Nyström sketch looks at the top of a spectrum. One product with ``r`` random columns gives ``H ≈ U
diag(l) Uᵀ``, exact when ``r ≥ rank(H)`` and otherwise close to the best rank-``r`` approximation if the spectrum decays
(Tropp, Yurtsever, Udell, Cevher 2017). For ``H + μI`` with a decaying ``H`` the preconditioner brings the condition
number near ``(l_r + μ)/μ`` (Frangella, Tropp, Udell 2023).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sgoif.errors import LinalgError
from sgoif.linalg.factor import eigh, factor_dtype
from sgoif.linalg.operator import LinearOperator
from sgoif.linalg.solver import Prepared
from sgoif.linalg.spectrum import random_columns
from sgoif.linalg.structured import split_damping

__all__ = [
    "GivenInverse",
    "NystromPreconditioner",
    "NystromSketch",
    "Preconditioned",
    "Preconditioner",
    "PreparedPreconditioner",
]


class PreparedPreconditioner(ABC):
    """``P⁻¹`` for one operator.

    >>> issubclass(GivenInverse, PreparedPreconditioner)
    True
    """

    contracts: ClassVar[bool] = False  # the spectral radius of I - P⁻¹H is below 1 for every positive definite H

    @abstractmethod
    def apply(self, residual: Tensor) -> Tensor:
        """Return ``P⁻¹ residual``, ``[P, N] -> [P, N]``. Never waits for the device."""


class Preconditioner(ABC):
    """A recipe for ``P⁻¹``; subclasses are frozen dataclasses of settings."""

    @abstractmethod
    def prepare(self, operator: LinearOperator, lambda_max: Tensor | None = None) -> PreparedPreconditioner:
        """Build ``P⁻¹`` for ``operator``; ``lambda_max`` is passed where the caller knows it. May sync."""


@dataclass(frozen=True, slots=True, eq=False)
class Preconditioned(Prepared):
    """An operator with its preconditioner, or without one."""

    preconditioner: PreparedPreconditioner | None

    def precondition(self, residual: Tensor) -> Tensor:
        """Return ``P⁻¹ residual``."""
        return residual if self.preconditioner is None else self.preconditioner.apply(residual)


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


@dataclass(frozen=True, slots=True, eq=False)
class NystromSketch:
    """``U diag(l) Uᵀ``, a rank-``r`` approximation of a positive semidefinite operator from below.

    >>> from sgoif.linalg import Diagonal
    >>> sketch = NystromSketch.draw(Diagonal(torch.tensor([3.0, 0.0, 0.0])), rank=2)
    >>> sketch.values[0].round(decimals=3)
    tensor(3.)
    """

    vectors: Tensor  # U, [P, r], orthonormal
    values: Tensor  # l, [r], descending, nonnegative
    ok: Tensor  # bool, 0-d; false when the operator's product was not finite, and then l = 0

    @classmethod
    def draw(cls, operator: LinearOperator, rank: int, generator: torch.Generator | None = None) -> NystromSketch:
        """Sketch with one product of ``r`` columns and ``O(Pr²)`` work, in float64. May wait for the device (SVD).

        A shift ``ν`` of the size of rounding keeps the small matrix ``ΩᵀHΩ`` positive definite and is taken off the
        eigenvalues again at the end.

        Raises:
            LinalgError: ``rank`` is not positive.
        """
        if rank < 1:
            raise LinalgError(f"a Nyström sketch needs a rank of at least 1, got {rank}.")
        wide = factor_dtype(operator.device)
        test, _ = torch.linalg.qr(random_columns(operator, min(rank, operator.shape[0]), generator))
        image = operator.matmul(test).to(wide)
        ok = torch.isfinite(image).all()
        image, test = torch.where(ok, image, torch.zeros_like(image)), test.to(wide)
        # Products come with the rounding of the operator's own dtype; the shift must exceed it.
        eps = torch.finfo(operator.dtype).eps
        shift = eps * operator.shape[0] ** 0.5 * torch.linalg.matrix_norm(image) + torch.finfo(wide).tiny
        image = image + shift * test
        core = eigh(test.mT @ image)
        roots = core.vectors / core.values.clamp_min(shift).sqrt()  # in place of a Cholesky factor, which may not exist
        vectors, singular, _ = torch.linalg.svd(image @ roots, full_matrices=False)
        values = (singular.square() - shift).clamp_min(0.0)
        values = torch.where(ok, values, torch.zeros_like(values))
        return cls(vectors.to(operator.dtype), values.to(operator.dtype), ok)

    def matmul(self, rhs: Tensor) -> Tensor:
        """Return ``U diag(l) Uᵀ rhs``, ``[P, N] -> [P, N]``."""
        return self.vectors @ (self.values[:, None] * (self.vectors.mT @ rhs))


@dataclass(frozen=True, slots=True, eq=False)
class PreparedNystrom(PreparedPreconditioner):
    """``P⁻¹ = (l_r + μ) U (diag(l) + μ)⁻¹ Uᵀ + (I - U Uᵀ)``; ``O(Pr)`` per column."""

    sketch: NystromSketch
    damping: Tensor  # μ, 0-d

    def apply(self, residual: Tensor) -> Tensor:
        values = self.sketch.values
        floor = torch.finfo(values.dtype).tiny
        # <= 1: the top of the spectrum is levelled
        gain = (values[-1] + self.damping + floor) / (values + self.damping + floor)
        inside = self.sketch.vectors.mT @ residual
        return residual + self.sketch.vectors @ ((gain - 1)[:, None] * inside)


@dataclass(frozen=True, slots=True, eq=False)
class NystromPreconditioner(Preconditioner):
    """A Nyström preconditioner for ``H + μI``.

    ``prepare`` takes ``μ`` from a :class:`sgoif.linalg.Damped` operator and sketches what is inside; any other operator
    is sketched whole with ``μ = 0``. "Sketch PCG" is ``ConjugateGradient(preconditioner=NystromPreconditioner(...))``.

    >>> from sgoif.linalg import ConjugateGradient, Damped, Diagonal
    >>> operator = Damped(Diagonal(torch.tensor([1e4, 1e2, 0.0, 0.0])), 1.0)
    >>> solver = ConjugateGradient(preconditioner=NystromPreconditioner(rank=3), max_iterations=2)
    >>> solver.solve(solver.prepare(operator), torch.ones(4, 1)).worst_status.name
    'CONVERGED'
    """

    rank: int
    generator: torch.Generator | None = None  # None draws the same columns every time

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise LinalgError(f"NystromPreconditioner needs a rank of at least 1, got {self.rank}.")

    def prepare(self, operator: LinearOperator, lambda_max: Tensor | None = None) -> PreparedNystrom:
        inner, damping = split_damping(operator)
        sketch = NystromSketch.draw(inner, self.rank, self.generator)
        return PreparedNystrom(sketch, torch.as_tensor(damping, dtype=operator.dtype, device=operator.device))
