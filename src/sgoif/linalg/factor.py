"""Factorisations that do not raise: eigenvectors, Cholesky and Woodbury, each with a flag that says if it holds.

During training a factor may contain NaN, or lose definiteness to rounding. Raising would stop the user's run, so each
factorisation returns something finite and a boolean ``ok`` **on the device**; solvers turn it into a status. Work is
done in float64 (float32 on devices without it) and returned in the dtype given. On CUDA an eigendecomposition waits for
the device inside LAPACK's replacement; that is why factorisations belong to ``prepare`` and never to a step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]  # public, but missing from its __all__

from sgoif.errors import LinalgError
from sgoif.linalg.operator import require_wide

__all__ = [
    "CholeskyFactor",
    "DiagonalFactor",
    "SymmetricEigen",
    "WoodburyInverse",
    "cholesky",
    "eigh",
    "eigvalsh",
    "factor_dtype",
]


def factor_dtype(device: torch.device) -> torch.dtype:
    """Return the widest dtype that ``device`` can factorise in."""
    return torch.float32 if device.type == "mps" else torch.float64


@dataclass(frozen=True, slots=True, eq=False)
class SymmetricEigen:
    """``M = V diag(w) Vᵀ`` with ascending ``w``, batched; where ``ok`` is false it stands for the identity."""

    values: Tensor  # w, [..., n]
    vectors: Tensor  # V, [..., n, n]
    ok: Tensor  # bool, [...]


def eigh(matrix: Tensor, *, nonnegative: bool = False) -> SymmetricEigen:
    """Decompose symmetric matrices ``[..., n, n]``, in float64, without ever raising for their values.

    The input is symmetrised first. With ``nonnegative`` (positive semidefinite by construction), eigenvalues that
    rounding made negative become 0.

    >>> eigh(torch.tensor([[2.0, 0.0], [0.0, 1.0]])).values
    tensor([1., 2.])
    >>> eigh(torch.full((1, 1), float("nan"))).ok
    tensor(False)
    """
    wide, ok = _symmetric_and_finite(matrix)
    try:
        values, vectors = torch.linalg.eigh(wide)
    except LinAlgError:  # LAPACK did not converge; seen only for extreme scalings
        ok = torch.zeros_like(ok)
        vectors = torch.eye(matrix.shape[-1], dtype=wide.dtype, device=wide.device).expand_as(wide)
        values = torch.ones_like(vectors[..., 0])
    if nonnegative:
        values = values.clamp_min(0.0)
    return SymmetricEigen(values.to(matrix.dtype), vectors.to(matrix.dtype), ok)


def eigvalsh(matrix: Tensor) -> Tensor:
    """Return ascending eigenvalues ``[..., n]`` without the vectors: as :func:`eigh`, several times cheaper.

    A non-finite matrix gives ones.

    >>> eigvalsh(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    tensor([-1.,  1.])
    """
    wide, _ = _symmetric_and_finite(matrix)
    try:
        values: Tensor = torch.linalg.eigvalsh(wide).to(matrix.dtype)
    except LinAlgError:
        values = torch.ones_like(matrix[..., 0])
    return values


@dataclass(frozen=True, slots=True, eq=False)
class CholeskyFactor:
    """``M = L Lᵀ``, batched; where ``ok`` is false it stands for the identity.

    >>> cholesky(torch.tensor([[4.0]])).solve(torch.tensor([[8.0]]))
    tensor([[2.]])
    """

    lower: Tensor  # L, [..., n, n]
    ok: Tensor  # bool, [...]

    def solve(self, rhs: Tensor) -> Tensor:
        """Return ``M⁻¹ rhs`` for ``rhs`` of shape ``[..., n, k]``."""
        return torch.cholesky_solve(rhs, self.lower)

    def inverse(self) -> Tensor:
        """Return ``M⁻¹`` itself, for a product at every step where a solve would be twice the price."""
        return torch.cholesky_inverse(self.lower)


@dataclass(frozen=True, slots=True, eq=False)
class DiagonalFactor:
    """A diagonal where a :class:`CholeskyFactor` may stand; where ``ok`` is false it stands for the identity."""

    values: Tensor  # [..., n]
    ok: Tensor  # bool, [...]

    @classmethod
    def of(cls, values: Tensor) -> DiagonalFactor:
        """Take a diagonal, which is one of a positive definite matrix or is not."""
        ok = (values > 0).all(-1) & torch.isfinite(values).all(-1)
        return cls(torch.where(ok[..., None], values, torch.ones_like(values)), ok)

    def solve(self, rhs: Tensor) -> Tensor:
        """Return ``D⁻¹ rhs`` for ``rhs`` of shape ``[..., n, k]``."""
        return rhs / self.values[..., None]

    def inverse(self) -> Tensor:
        """Return the diagonal of ``D⁻¹``."""
        return self.values.reciprocal()


def cholesky(matrix: Tensor, *, in_double: bool = True) -> CholeskyFactor:
    """Factorise positive definite matrices ``[..., n, n]``; never raises for their values and never waits.

    In float64, unless ``in_double`` is false: then in the dtype given, for matrices known to be well-conditioned.

    No jitter is added: a matrix that is not positive definite is reported, not repaired.

    >>> cholesky(torch.tensor([[-1.0]])).ok
    tensor(False)
    """
    wide, finite = _symmetric_and_finite(matrix, in_double=in_double)
    lower, info = torch.linalg.cholesky_ex(wide)
    ok = finite & (info == 0)
    eye = torch.eye(matrix.shape[-1], dtype=wide.dtype, device=wide.device)
    return CholeskyFactor(torch.where(ok[..., None, None], lower, eye).to(matrix.dtype), ok)


@dataclass(frozen=True, slots=True, eq=False)
class WoodburyInverse:
    """Inverse of ``diag(d) + U Uᵀ``, factorised once and applied at every step.

    Woodbury turns a ``P×P`` solve into a ``k×k`` one: ``O(Pk)`` memory and time per vector. It needs ``d > 0``;
    otherwise ``ok`` is false and ``apply`` returns its input.

    >>> WoodburyInverse.factorise(torch.ones(2), torch.ones(2, 1)).apply(torch.tensor([[3.0], [3.0]])).ravel()
    tensor([1.0000, 1.0000])
    """

    diag: Tensor  # d, [P], positive
    scaled: Tensor  # D⁻¹U, [P, k]
    inner: CholeskyFactor  # of I + UᵀD⁻¹U, [k, k]
    ok: Tensor  # bool, 0-d

    @classmethod
    def factorise(cls, diag: Tensor, low_rank: Tensor) -> WoodburyInverse:
        """Factorise once: ``O(Pk² + k³)``, no host sync.

        Raises:
            LinalgError: the shapes do not match.
        """
        require_wide("WoodburyInverse", diag=diag, low_rank=low_rank)
        if diag.ndim != 1 or low_rank.ndim != 2 or low_rank.shape[0] != diag.shape[0]:
            raise LinalgError(
                f"WoodburyInverse needs diag [P] and low_rank [P, k], got {tuple(diag.shape)} and "
                f"{tuple(low_rank.shape)}; low_rank holds one column per direction."
            )
        # Written so that NaN fails too. Where it fails, stand in the identity: d = 1, U = 0.
        ok = (diag > 0).all() & torch.isfinite(diag).all() & torch.isfinite(low_rank).all()
        diag = torch.where(ok, diag, torch.ones_like(diag))
        low_rank = torch.where(ok, low_rank, torch.zeros_like(low_rank))
        # Balanced as BᵀB with B = D^-1/2 U, in float64: symmetric to the last bit, and d may span many magnitudes.
        balanced = (low_rank / diag.sqrt()[:, None]).to(factor_dtype(diag.device))
        eye = torch.eye(low_rank.shape[1], dtype=balanced.dtype, device=diag.device)
        # All eigenvalues of I + BᵀB are >= 1, so Cholesky needs no jitter; it can fail only by overflow.
        inner = cholesky(eye + balanced.mT @ balanced)
        inner = CholeskyFactor(inner.lower.to(diag.dtype), inner.ok)
        return cls(diag, low_rank / diag[:, None], inner, ok & inner.ok)

    def apply(self, rhs: Tensor) -> Tensor:
        """Return ``(diag(d) + U Uᵀ)⁻¹ rhs``, ``[P, N] -> [P, N]``."""
        return rhs / self.diag[:, None] - self.scaled @ self.inner.solve(self.scaled.mT @ rhs)


def _symmetric_and_finite(matrix: Tensor, *, in_double: bool = True) -> tuple[Tensor, Tensor]:
    """Return ``(M + Mᵀ)/2``, by default in float64, and which are finite; the identity stands for the others."""
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2]:
        raise LinalgError(f"a factorisation needs square matrices [..., n, n], got {tuple(matrix.shape)}.")
    require_wide("a factorisation", matrix=matrix)
    wide = matrix.to(factor_dtype(matrix.device)) if in_double else matrix
    wide = 0.5 * (wide + wide.mT)
    ok = torch.isfinite(wide.sum(dim=(-2, -1)))  # one pass; a sum of finite numbers overflows far beyond any factor
    eye = torch.eye(matrix.shape[-1], dtype=wide.dtype, device=wide.device)
    return torch.where(ok[..., None, None], wide, eye), ok
