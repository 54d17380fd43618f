"""The Kronecker family: ``L ⊗ R`` per group, whole or with a diagonal ``L``, and a diagonal in its eigenbasis.

A layer's parameters are a block ``[G, O, I]`` (:mod:`sgoif.records`); flattened row by row, ``(L ⊗ R) vec(X) = vec(L X
Rᵀ)``. ``L`` acts on outputs and ``R`` on inputs, for each group ``g`` on its own. A right-hand side ``[P, N]`` that is
the transpose of a contiguous ``[N, P]`` (what :func:`sgoif.linalg.vectors.flatten` gives) is read without a copy.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sgoif.errors import LinalgError
from sgoif.linalg.operator import StoredOperator, require_square, require_wide

__all__ = ["DiagonalKronecker", "Kronecker", "RotatedDiagonal", "sandwich"]


def sandwich(left: Tensor, right: Tensor, rhs: Tensor) -> Tensor:
    """Compute ``X[n, g] -> left[g] @ X[n, g] @ right[g]ᵀ`` on columns ``[P, N]``, ``P = G·O·I``.

    ``O(N·P·(O + I))`` time. Nothing is checked: callers have done so.
    """
    groups, outputs, inputs = left.shape[0], left.shape[1], right.shape[1]
    size, columns = rhs.shape
    blocks = rhs.mT.reshape(columns, groups, outputs, inputs).transpose(0, 1)  # [G, N, O, I], a view as a rule
    # Inputs first, with examples and outputs folded into one large product; twice as fast as one einsum.
    blocks = blocks.reshape(groups, columns * outputs, inputs) @ right.mT
    blocks = left[:, None] @ blocks.reshape(groups, columns, outputs, inputs)
    return blocks.transpose(0, 1).reshape(columns, size).mT


def _as_groups(factor: Tensor) -> Tensor:
    return factor[None] if factor.ndim == 2 else factor


@dataclass(frozen=True, slots=True, eq=False)
class Kronecker(StoredOperator):
    """``L[g] ⊗ R[g]``, block-diagonal over groups; ``O(G(O² + I²))`` memory instead of ``O(G·O²·I²)``.

    Two-dimensional factors are taken as one group. Both factors are symmetric.

    >>> Kronecker(torch.tensor([[2.0]]), torch.tensor([[1.0, 1.0], [1.0, 3.0]])).to_dense()
    tensor([[2., 2.],
            [2., 6.]])
    """

    left: Tensor  # L, [G, O, O], acts on outputs
    right: Tensor  # R, [G, I, I], acts on inputs

    def __post_init__(self) -> None:
        object.__setattr__(self, "left", _as_groups(self.left))
        object.__setattr__(self, "right", _as_groups(self.right))
        require_square("Kronecker", "left", self.left, ndim=3)
        require_square("Kronecker", "right", self.right, ndim=3)
        require_wide("Kronecker", left=self.left, right=self.right)
        if self.left.shape[0] != self.right.shape[0]:
            raise LinalgError(
                f"Kronecker needs as many left as right factors, got {self.left.shape[0]} and {self.right.shape[0]}; "
                f"both carry one matrix per group."
            )

    @property
    def shape(self) -> tuple[int, int]:
        size = self.left.shape[0] * self.left.shape[1] * self.right.shape[1]
        return (size, size)

    def matmul(self, rhs: Tensor) -> Tensor:
        return sandwich(self.left, self.right, self.check_columns(rhs))

    def diagonal(self) -> Tensor:
        left, right = self.left.diagonal(dim1=1, dim2=2), self.right.diagonal(dim1=1, dim2=2)
        return (left[:, :, None] * right[:, None, :]).flatten()


@dataclass(frozen=True, slots=True, eq=False)
class DiagonalKronecker(StoredOperator):
    """``diag(l[g]) ⊗ R[g]``, block-diagonal over groups: a Kronecker product without the square of many outputs.

    >>> DiagonalKronecker(torch.tensor([[2.0, 3.0]]), torch.tensor([[[1.0]]])).to_dense()
    tensor([[2., 0.],
            [0., 3.]])
    """

    left: Tensor  # l, [G, O], acts on outputs
    right: Tensor  # R, [G, I, I], acts on inputs

    def __post_init__(self) -> None:
        require_square("DiagonalKronecker", "right", self.right, ndim=3)
        require_wide("DiagonalKronecker", left=self.left, right=self.right)
        if self.left.ndim != 2 or self.left.shape[0] != self.right.shape[0]:
            raise LinalgError(
                f"DiagonalKronecker needs left [G, O] and right [G, I, I], got {tuple(self.left.shape)} and "
                f"{tuple(self.right.shape)}."
            )

    @property
    def shape(self) -> tuple[int, int]:
        size = self.left.numel() * self.right.shape[1]
        return (size, size)

    def matmul(self, rhs: Tensor) -> Tensor:
        size, columns = self.check_columns(rhs).shape
        blocks = rhs.mT.reshape(columns, *self.left.shape, self.right.shape[1]).transpose(0, 1)  # [G, N, O, I]
        blocks = blocks.reshape(len(self.left), -1, self.right.shape[1]) @ self.right.mT
        blocks = blocks.reshape(len(self.left), columns, -1, self.right.shape[1]) * self.left[:, None, :, None]
        return blocks.transpose(0, 1).reshape(columns, size).mT

    def diagonal(self) -> Tensor:
        return (self.left[:, :, None] * self.right.diagonal(dim1=1, dim2=2)[:, None, :]).flatten()


@dataclass(frozen=True, slots=True, eq=False)
class RotatedDiagonal(StoredOperator):
    """``(V ⊗ W) diag(s) (V ⊗ W)ᵀ`` per group, with orthogonal ``V`` (outputs) and ``W`` (inputs).

    This is a Kronecker product in its eigenbasis when ``s = s_V ⊗ s_W``, and the eigenvalue-corrected K-FAC for other
    ``s``. A product costs two rotations. Orthogonality is a promise of the caller.

    >>> RotatedDiagonal(torch.eye(1), torch.eye(2), torch.tensor([[[3.0, 4.0]]])).diagonal()
    tensor([3., 4.])
    """

    left: Tensor  # V, [G, O, O], orthogonal
    right: Tensor  # W, [G, I, I], orthogonal
    values: Tensor  # s, [G, O, I]

    def __post_init__(self) -> None:
        object.__setattr__(self, "left", _as_groups(self.left))
        object.__setattr__(self, "right", _as_groups(self.right))
        require_square("RotatedDiagonal", "left", self.left, ndim=3)
        require_square("RotatedDiagonal", "right", self.right, ndim=3)
        require_wide("RotatedDiagonal", left=self.left, right=self.right, values=self.values)
        needed = (self.left.shape[0], self.left.shape[1], self.right.shape[1])
        if self.right.shape[0] != needed[0] or tuple(self.values.shape) != needed:
            raise LinalgError(
                f"RotatedDiagonal needs values of shape {needed} for its rotations, got {tuple(self.values.shape)} and "
                f"{self.right.shape[0]} right rotations; all three carry one entry per group."
            )

    @property
    def shape(self) -> tuple[int, int]:
        return (self.values.numel(), self.values.numel())

    def matmul(self, rhs: Tensor) -> Tensor:
        rotated = sandwich(self.left.mT, self.right.mT, self.check_columns(rhs))
        return sandwich(self.left, self.right, self.values.flatten()[:, None] * rotated)

    def diagonal(self) -> Tensor:
        # diag of V⊗W diag(s) (V⊗W)ᵀ: squared rotations applied to s.
        return torch.einsum("gpo,goi,gji->gpj", self.left.square(), self.values, self.right.square()).flatten()
