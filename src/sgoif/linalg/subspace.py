"""A symmetric matrix by its largest eigenvalues, the mean of the others standing for each of them.

Iteration on a subspace costs a product with a few columns where a factorisation costs ``n³``, and a matrix that moves
slowly needs one step from the last subspace.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sgoif.devices import send
from sgoif.linalg.factor import eigh
from sgoif.linalg.operator import LinearOperator
from sgoif.linalg.spectrum import random_columns

__all__ = ["TopEigenpairs", "follow_top_eigenpairs", "follow_top_subspace"]

_COLD_STEPS = 8


@dataclass(frozen=True, slots=True, eq=False)
class TopEigenpairs:
    """``Q diag(λ) Qᵀ + σ (I - QQᵀ)``, with orthonormal ``Q``."""

    vectors: Tensor  # Q, [n, r]
    values: Tensor  # λ, [r]
    rest: Tensor  # σ, the mean of the other eigenvalues, 0-d


def follow_top_eigenpairs(matrix: Tensor, rank: int, start: Tensor | None = None) -> TopEigenpairs:
    """Find the largest eigenvalues of a positive definite matrix ``[n, n]``; may wait for the device.

    Args:
        matrix: symmetric and positive definite.
        rank: how many eigenvalues; with ``n`` or more of them the result is exact.
        start: the vectors found for an earlier matrix: then one step is made instead of eight from random ones.

    >>> found = follow_top_eigenpairs(torch.diag(torch.tensor([9.0, 1.0, 1.0])), 1)
    >>> found.values.round(decimals=3), found.rest.round(decimals=3)
    (tensor([9.]), tensor(1.))
    """
    size = len(matrix)
    rank = min(rank, size)
    steps = 1
    if start is None:
        draw = torch.randn(size, rank, generator=torch.Generator().manual_seed(0), dtype=matrix.dtype)
        start, steps = send(draw, matrix.device), _COLD_STEPS
    vectors = start
    for _ in range(steps):
        vectors = torch.linalg.qr(matrix @ vectors).Q
    image = matrix @ vectors
    ritz = eigh(vectors.mT @ image)
    rest = (matrix.diagonal().sum() - ritz.values.sum()) / max(size - rank, 1)
    smallest = torch.finfo(matrix.dtype).eps * ritz.values.max()
    return TopEigenpairs(vectors @ ritz.vectors, ritz.values, rest.maximum(smallest))


def follow_top_subspace(operator: LinearOperator, rank: int, start: Tensor | None = None) -> Tensor:
    """Find an orthonormal basis ``[P, r]`` of the directions along which an operator is largest.

    Args:
        operator: symmetric and positive definite.
        rank: how many directions, at most ``P``.
        start: the basis found for an earlier operator: then one step is made instead of eight from random columns.

    >>> from sgoif.linalg import Diagonal
    >>> follow_top_subspace(Diagonal(torch.tensor([9.0, 1.0])), 1).abs().round(decimals=3).ravel()
    tensor([1., 0.])
    """
    basis, steps = start, 1
    if basis is None:
        basis, steps = random_columns(operator, min(rank, operator.shape[0])), _COLD_STEPS
    for _ in range(steps):
        basis = torch.linalg.qr(operator.matmul(basis)).Q
    return basis
