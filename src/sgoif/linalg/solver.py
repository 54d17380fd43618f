"""The shape of every solver of ``H φ = g``: frozen settings, ``prepare`` once, ``solve`` often, a status per column.

Numerical failure is data. A column that grows or turns non-finite gets a status and a finite value (its best iterate,
or zeros), and the columns beside it go on; nothing is raised. Exceptions are kept for callers' mistakes, such as wrong
shapes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, TypeVar

from torch import Tensor

from sgoif.errors import LinalgError
from sgoif.linalg.operator import LinearOperator

__all__ = ["Prepared", "Solution", "SolveStats", "SolveStatus", "Solver", "check_problem"]


class SolveStatus(IntEnum):
    """How the solve of one column ended; larger is worse, so the worst of several is their maximum.

    >>> max(SolveStatus.CONVERGED, SolveStatus.GREW).name
    'GREW'
    """

    CONVERGED = 0  # the relative residual is within the tolerance
    UNFINISHED = 1  # the budget is spent, or more is not worth it; the residual says how far the value is
    GREW = 2  # the residual grew, or the operator showed itself not positive definite; the value is the best iterate
    NON_FINITE = 3  # NaN or infinity in the right-hand side, the operator or the iteration; as GREW, or zeros


@dataclass(frozen=True, slots=True, eq=False)
class SolveStats:
    """What a solve cost and how good it is."""

    products: int  # products of the operator with the whole block [P, N]
    iterations: int
    relative_residual: Tensor  # |g - Hφ| / |g|, [N]; 0 for g = 0, inf for a non-finite g


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """Columns ``φ ≈ H⁻¹ g`` and, for each, how its solve ended.

    >>> import torch
    >>> stats = SolveStats(products=1, iterations=1, relative_residual=torch.zeros(1))
    >>> Solution(torch.ones(2, 1), torch.zeros(1, dtype=torch.int8), stats).worst_status.name
    'CONVERGED'
    """

    value: Tensor  # φ, [P, N], always finite
    status: Tensor  # SolveStatus as int8 on the device, [N]
    stats: SolveStats

    @property
    def worst_status(self) -> SolveStatus:
        """Return the worst status of all columns. Waits for the device: ask at refreshes, not at steps."""
        return SolveStatus(int(self.status.max().item())) if self.status.numel() else SolveStatus.CONVERGED


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """What a solver found out about an operator once, to be used in many solves."""

    operator: LinearOperator


PreparedT = TypeVar("PreparedT", bound=Prepared)


class Solver(ABC, Generic[PreparedT]):
    """A way to solve ``H φ = g`` for symmetric positive definite ``H``; subclasses are frozen dataclasses of settings.

    >>> import torch
    >>> from sgoif.linalg import Dense, Direct
    >>> solver = Direct()
    >>> prepared = solver.prepare(Dense(torch.eye(2) * 4))
    >>> solver.solve(prepared, torch.ones(2, 1)).value.ravel()
    tensor([0.2500, 0.2500])
    """

    @abstractmethod
    def prepare(self, operator: LinearOperator) -> PreparedT:
        """Do once what depends on the operator alone. May wait for the device."""

    @abstractmethod
    def solve(self, prepared: PreparedT, rhs: Tensor, initial: Tensor | None = None) -> Solution:
        """Solve for all columns of ``rhs`` ``[P, N]``, from ``initial`` ``[P, N]`` or from zeros.

        Raises:
            LinalgError: the shapes do not fit; never for values.
        """


def check_problem(operator: LinearOperator, rhs: Tensor, initial: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return both in the operator's dtype.

    Raises:
        LinalgError: a shape or dtype does not fit the operator, or ``initial`` differs in shape from ``rhs``.
    """
    rhs = operator.check_columns(rhs)
    if initial is None:
        return rhs, None
    if initial.shape != rhs.shape:
        raise LinalgError(
            f"initial needs the shape of the right-hand side, {tuple(rhs.shape)}, got {tuple(initial.shape)}; "
            f"pass the previous solution of the same columns, or None."
        )
    return rhs, operator.check_columns(initial)
