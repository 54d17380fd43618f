"""Matrices with a structure worth keeping: dense, diagonal, low rank plus diagonal, damped, block-diagonal.

Each costs what its structure costs and no more; the Kronecker family has its own file, :mod:`sgoif.linalg.kronecker`.
All are symmetric. Constructors check shapes and dtypes and never read a value, so building one does not wait for the
device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sgoif.errors import LinalgError
from sgoif.linalg.operator import LinearOperator, StoredOperator, require_square, require_wide

__all__ = ["BlockDiagonal", "Damped", "Dense", "Diagonal", "LowRankPlusDiagonal", "split_damping"]


@dataclass(frozen=True, slots=True, eq=False)
class Dense(StoredOperator):
    """A symmetric matrix held in full: ``O(P²)`` memory and ``O(P²)`` per product and column.

    >>> Dense(torch.tensor([[2.0, 1.0], [1.0, 3.0]])) @ torch.ones(2, 1)
    tensor([[3.],
            [4.]])
    """

    matrix: Tensor  # [P, P], symmetric

    def __post_init__(self) -> None:
        require_square("Dense", "matrix", self.matrix, ndim=2)
        require_wide("Dense", matrix=self.matrix)

    def matmul(self, rhs: Tensor) -> Tensor:
        return self.matrix @ self.check_columns(rhs)

    def diagonal(self) -> Tensor:
        return self.matrix.diagonal()

    def to_dense(self) -> Tensor:
        return self.matrix


@dataclass(frozen=True, slots=True, eq=False)
class Diagonal(StoredOperator):
    """``diag(d)``: ``O(P)`` memory and ``O(P)`` per product and column.

    >>> (Diagonal(torch.tensor([2.0, 3.0])) @ torch.ones(2, 1)).ravel()
    tensor([2., 3.])
    """

    values: Tensor  # d, [P]

    def __post_init__(self) -> None:
        if self.values.ndim != 1:
            raise LinalgError(f"Diagonal needs values of shape [P], got {tuple(self.values.shape)}; call `.flatten()`.")
        require_wide("Diagonal", values=self.values)

    def matmul(self, rhs: Tensor) -> Tensor:
        return self.values[:, None] * self.check_columns(rhs)

    def diagonal(self) -> Tensor:
        return self.values

    def to_dense(self) -> Tensor:
        return torch.diag(self.values)


@dataclass(frozen=True, slots=True, eq=False)
class LowRankPlusDiagonal(StoredOperator):
    """``diag(d) + U Uᵀ``: ``O(Pk)`` memory and ``O(Pk)`` per product and column.

    >>> LowRankPlusDiagonal(torch.ones(2), torch.tensor([[1.0], [2.0]])).to_dense()
    tensor([[2., 2.],
            [2., 5.]])
    """

    diag: Tensor  # d, [P]
    low_rank: Tensor  # U, [P, k]; k may be 0

    def __post_init__(self) -> None:
        if self.diag.ndim != 1 or self.low_rank.ndim != 2 or self.low_rank.shape[0] != self.diag.shape[0]:
            raise LinalgError(
                f"LowRankPlusDiagonal needs diag [P] and low_rank [P, k], got {tuple(self.diag.shape)} and "
                f"{tuple(self.low_rank.shape)}; low_rank holds one column per direction."
            )
        require_wide("LowRankPlusDiagonal", diag=self.diag, low_rank=self.low_rank)

    def matmul(self, rhs: Tensor) -> Tensor:
        rhs = self.check_columns(rhs)
        return self.diag[:, None] * rhs + self.low_rank @ (self.low_rank.mT @ rhs)

    def diagonal(self) -> Tensor:
        return self.diag + self.low_rank.square().sum(dim=1)

    def to_dense(self) -> Tensor:
        return torch.diag(self.diag) + self.low_rank @ self.low_rank.mT


@dataclass(frozen=True, slots=True, eq=False)
class Damped(StoredOperator):
    """``H + λI`` for an operator ``H``; ``λ`` may be a 0-d tensor, so that it need not be known to the host.

    >>> Damped(Diagonal(torch.tensor([1.0, 2.0])), 0.5).diagonal()
    tensor([1.5000, 2.5000])
    """

    operator: LinearOperator  # H
    damping: Tensor | float  # λ, 0-d

    def __post_init__(self) -> None:
        if isinstance(self.damping, Tensor) and self.damping.ndim != 0:
            raise LinalgError(
                f"Damped needs one number, got a tensor of shape {tuple(self.damping.shape)}; "
                f"for a damping per block use BlockDiagonal of Damped blocks."
            )

    def matmul(self, rhs: Tensor) -> Tensor:
        rhs = self.check_columns(rhs)
        product = self.operator.matmul(rhs)
        if isinstance(self.damping, Tensor):
            return torch.addcmul(product, self.damping.to(product.dtype), rhs)
        return product + self.damping * rhs

    def diagonal(self) -> Tensor:
        return self.operator.diagonal() + self.damping

    def to_dense(self) -> Tensor:
        return self.operator.to_dense() + self.damping * torch.eye(self.shape[0], dtype=self.dtype, device=self.device)


@dataclass(frozen=True, slots=True, eq=False)
class BlockDiagonal(LinearOperator):
    """Operators side by side on the diagonal, one per layer, coupled by nothing.

    >>> BlockDiagonal((Diagonal(torch.ones(1)), Diagonal(torch.full((2,), 2.0)))).diagonal()
    tensor([1., 2., 2.])
    """

    blocks: tuple[LinearOperator, ...]

    def __post_init__(self) -> None:
        if not self.blocks:
            raise LinalgError("BlockDiagonal needs at least one block, got none; pass a tuple of operators.")
        kinds = {(block.dtype, block.device) for block in self.blocks}
        if len(kinds) > 1:
            found = ", ".join(f"{dtype} on {device}" for dtype, device in sorted(kinds, key=str))
            raise LinalgError(
                f"BlockDiagonal needs blocks of one dtype on one device, got {found}; move them together."
            )

    @property
    def sizes(self) -> list[int]:
        return [block.shape[0] for block in self.blocks]

    @property
    def shape(self) -> tuple[int, int]:
        return (sum(self.sizes), sum(self.sizes))

    @property
    def dtype(self) -> torch.dtype:
        return self.blocks[0].dtype

    @property
    def device(self) -> torch.device:
        return self.blocks[0].device

    def matmul(self, rhs: Tensor) -> Tensor:
        parts = torch.split(self.check_columns(rhs), self.sizes)
        return torch.cat([block.matmul(part) for block, part in zip(self.blocks, parts, strict=True)])

    def diagonal(self) -> Tensor:
        return torch.cat([block.diagonal() for block in self.blocks])


def split_damping(operator: LinearOperator) -> tuple[LinearOperator, Tensor | float]:
    """Return ``(H, λ)`` with ``operator = H + λI`` and ``H`` not a :class:`Damped`; nested dampings add up.

    >>> split_damping(Damped(Damped(Diagonal(torch.ones(1)), 0.5), 0.25))[1]
    0.75
    """
    damping: Tensor | float = 0.0
    while isinstance(operator, Damped):
        damping = damping + operator.damping
        operator = operator.operator
    return operator, damping
