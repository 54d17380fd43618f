"""What every matrix here is: a symmetric linear operator known by its products.

Curvature matrices are far too large to hold, yet each has a structure that makes products (and often solves) cheap.
Solvers see only this interface; :mod:`sgoif.linalg.direct` alone looks at the structure behind it.

Numbers: operators hold float32 or float64. A narrower right-hand side is widened to the operator's dtype; a wider one
is refused, because the digits it carries would be lost without a word.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from sgoif.errors import LinalgError

__all__ = ["LinearOperator", "StoredOperator", "require_square", "require_wide"]


class LinearOperator(ABC):
    """A **symmetric** ``P×P`` matrix, given by its products with blocks of columns.

    Symmetry is a promise of the subclass and is not checked: solvers use ``H`` and ``Hᵀ`` interchangeably.

    >>> import torch
    >>> class Twice(LinearOperator):
    ...     shape, dtype, device = (3, 3), torch.float32, torch.device("cpu")
    ...     def matmul(self, rhs):
    ...         return 2 * self.check_columns(rhs)
    >>> Twice().diagonal()
    tensor([2., 2., 2.])
    """

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """``(P, P)``."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The dtype of the operator's tensors and of every product."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the operator's tensors live."""

    @abstractmethod
    def matmul(self, rhs: Tensor) -> Tensor:
        """Multiply a block of columns, ``[P, N] -> [P, N]``. Never waits for the device."""

    def __matmul__(self, rhs: Tensor) -> Tensor:
        return self.matmul(rhs)

    def diagonal(self) -> Tensor:
        """Return the diagonal, ``[P]``. This default builds the dense matrix; structured operators do better."""
        return self.to_dense().diagonal()

    def to_dense(self) -> Tensor:
        """Return the ``[P, P]`` matrix, by default through ``P`` products. For tests and for small ``P``."""
        return self.matmul(torch.eye(self.shape[0], dtype=self.dtype, device=self.device))

    def check_columns(self, rhs: Tensor) -> Tensor:
        """Return ``rhs`` in the operator's dtype, or say why it does not fit.

        Raises:
            LinalgError: ``rhs`` is not ``[P, N]``, or is wider than the operator.
        """
        size = self.shape[0]
        if rhs.ndim != 2 or rhs.shape[0] != size:
            raise LinalgError(
                f"{type(self).__name__} of shape {self.shape} multiplies columns [{size}, N], got {tuple(rhs.shape)}; "
                f"use `vectors.flatten`, or add a column axis with `[:, None]`."
            )
        if torch.promote_types(rhs.dtype, self.dtype) != self.dtype:
            raise LinalgError(
                f"{type(self).__name__} is {self.dtype} but the right-hand side is {rhs.dtype}; "
                f"build the operator in {rhs.dtype}, or narrow the right-hand side yourself."
            )
        return rhs.to(self.dtype)


class StoredOperator(LinearOperator):
    """A dataclass that takes size, dtype and device from its first field, a tensor or another operator."""

    @property
    def _first(self) -> Any:
        return getattr(self, fields(self)[0].name)  # type: ignore[arg-type]  # subclasses are dataclasses

    @property
    def shape(self) -> tuple[int, int]:
        return (self._first.shape[0], self._first.shape[0])

    @property
    def dtype(self) -> torch.dtype:
        return self._first.dtype  # type: ignore[no-any-return]

    @property
    def device(self) -> torch.device:
        return self._first.device  # type: ignore[no-any-return]


def require_wide(owner: str, **tensors: Tensor) -> None:
    """Refuse half precision and integers: sums over thousands of parameters need float32 or float64.

    Raises:
        LinalgError: some tensor is neither, or the tensors differ in dtype.
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in (torch.float32, torch.float64):
            raise LinalgError(f"{owner} needs {name} in float32 or float64, got {tensor.dtype}; call `.float()` on it.")
    dtypes = {tensor.dtype for tensor in tensors.values()}
    if len(dtypes) > 1:
        found = ", ".join(f"{name}: {tensor.dtype}" for name, tensor in tensors.items())
        raise LinalgError(f"{owner} needs one dtype for all its tensors, got {found}; convert them to the wider one.")


def require_square(owner: str, name: str, matrix: Tensor, ndim: int) -> None:
    """Refuse anything but square matrices, batched when ``ndim`` is 3.

    Raises:
        LinalgError: wrong number of axes, or not square.
    """
    if matrix.ndim != ndim or matrix.shape[-1] != matrix.shape[-2]:
        needed = "[n, n]" if ndim == 2 else "[groups, n, n]"
        raise LinalgError(f"{owner} needs {name} of shape {needed}, got {tuple(matrix.shape)}; pass square matrices.")
