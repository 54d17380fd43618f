"""Richardson's iteration: the solver that advances one product at a time, beside the training step.

``φ ← φ + ρ P⁻¹ (g - Hφ)`` with ``ρ = 1/λ_max(P⁻¹H)``. Modes with ``λ ≪ λ_max`` need ``λ_max/λ`` steps; when ``H`` moves
they never arrive, and what they contain depends on how long the run was. A *leak* gives the iteration a fixed memory
instead: iterate on ``H + (λ_max/W) I``, so that nothing older than about ``W`` steps (``leak_horizon``) survives and
the fixed point is the honestly damped ``(H + (λ_max/W) I)⁻¹ g``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sgoif.errors import LinalgError
from sgoif.linalg.operator import LinearOperator
from sgoif.linalg.preconditioner import Preconditioned, Preconditioner, PreparedPreconditioner
from sgoif.linalg.progress import ColumnProgress
from sgoif.linalg.solver import Solution, Solver
from sgoif.linalg.spectrum import follow_lambda_max, random_columns, safe_reciprocal
from sgoif.linalg.structured import Damped

__all__ = ["PreparedRichardson", "Richardson"]

_COLD_STEPS = 32  # products of a power iteration on P⁻¹H
_DECAY = 0.6  # Robbins-Monro exponent: in (1/2, 1], so that Σρ = ∞ and Σρ² < ∞; the smaller, the faster
# Preconditioned residuals may rise by sqrt(condition) before they fall; a real divergence passes this soon.
_GROWTH_LIMIT = 1e3


@dataclass(frozen=True, slots=True, eq=False)
class PreparedRichardson(Preconditioned):
    """An operator (with its leak), a step size and a preconditioner."""

    rho: Tensor  # 0-d
    lambda_max: Tensor | None  # of H without the leak, 0-d; None where nothing needed it
    vectors: Sequence[Tensor] | None  # of the power iteration, to start from next time


@dataclass(frozen=True, slots=True, eq=False)
class Richardson(Solver[PreparedRichardson]):
    """Preconditioned Richardson, with an optional leak.

    >>> from sgoif.linalg import Diagonal
    >>> solver = Richardson(max_iterations=50, tolerance=1e-4)
    >>> prepared = solver.prepare(Diagonal(torch.tensor([1.0, 2.0])))
    >>> phi, residual = solver.step(prepared, torch.zeros(2, 1), torch.ones(2, 1))
    >>> phi.ravel()
    tensor([0.5000, 0.5000])

    Args:
        rho: a step size to use as it is; by default ``1/λ_max(P⁻¹H)``, or 1 for preconditioners that contract by
            themselves.
        leak_horizon: ``W`` above, in steps; ``None`` iterates on ``H`` itself.
        preconditioner: ``P⁻¹``; ``None`` means the identity.
        schedule: ``"constant"``, or ``"robbins-monro"`` for ``ρ_t = ρ/(1+t)^0.6``, which satisfies Lemma 4's step
            condition but freezes the iterate when ``H`` keeps moving; for convex, fixed problems.
        max_iterations: budget of :meth:`solve`, in products.
        tolerance: relative residual at which a column has converged.
        check_every: :meth:`solve` asks the device every so many iterations whether to stop early; 0 never asks.
    """

    rho: float | None = None
    leak_horizon: float | None = None
    preconditioner: Preconditioner | None = None
    schedule: Literal["constant", "robbins-monro"] = "constant"
    max_iterations: int = 100
    tolerance: float = 1e-3
    check_every: int = 10

    def __post_init__(self) -> None:
        if self.schedule not in ("constant", "robbins-monro"):
            raise LinalgError(f"schedule must be 'constant' or 'robbins-monro', got {self.schedule!r}.")
        if self.leak_horizon is not None and not self.leak_horizon > 0:
            raise LinalgError(f"leak_horizon must be a positive number of steps or None, got {self.leak_horizon}.")
        if self.rho is not None and not self.rho > 0:
            raise LinalgError(f"rho must be positive or None, got {self.rho}; None finds 1/lambda_max.")

    def prepare(self, operator: LinearOperator, vectors: Sequence[Tensor] | None = None) -> PreparedRichardson:
        """Find ``λ_max`` by power iteration, the leak and the step size.

        That estimates ``λ_max`` from below; Richardson converges up to twice the step, so that is safe.

        Args:
            operator: ``H``, positive definite.
            vectors: those of the result for an earlier ``H``, to start the power iteration from.
        """
        largest: Tensor | None = None
        if self.rho is None or self.leak_horizon is not None:
            largest, vectors = follow_lambda_max(operator, vectors)
        leaked, top = operator, largest
        if self.leak_horizon is not None and largest is not None:
            leaked = Damped(operator, largest / self.leak_horizon)
            top = largest + largest / self.leak_horizon
        precondition = None if self.preconditioner is None else self.preconditioner.prepare(leaked, top)
        return PreparedRichardson(leaked, precondition, self._step_size(leaked, top, precondition), largest, vectors)

    def step(
        self, prepared: PreparedRichardson, phi: Tensor, rhs: Tensor, t: Tensor | int = 0
    ) -> tuple[Tensor, Tensor]:
        """Advance by one product, without waiting for the device.

        Args:
            prepared: from :meth:`prepare`.
            phi: the iterate, ``[P, N]``.
            rhs: ``g``, ``[P, N]``.
            t: how many steps were taken before; only a Robbins-Monro schedule looks at it.

        Returns:
            The next iterate, and the residual ``g - Hφ`` (``H`` with its leak) of the iterate **given**: the one the
            update was made from, so that reporting it costs nothing more.
        """
        residual = rhs - prepared.operator.matmul(phi)
        return torch.addcmul(phi, self._rho_at(prepared, t), prepared.precondition(residual)), residual

    def solve(self, prepared: PreparedRichardson, rhs: Tensor, initial: Tensor | None = None) -> Solution:
        """Iterate until each column has converged or failed, or the budget is spent; one product per iteration.

        The value returned is the iterate whose residual is reported. Growth beyond 1000 times the best residual, or
        ending above the first one, is ``GREW``.
        """
        progress = ColumnProgress(prepared.operator, rhs, initial, tolerance=self.tolerance, growth_limit=_GROWTH_LIMIT)
        residual = progress.residual
        for iteration in progress.iterate(self.max_iterations, self.check_every):
            value = progress.value + self._rho_at(prepared, iteration) * prepared.precondition(residual)
            residual = progress.advance(value, progress.rhs - prepared.operator.matmul(value))
        progress.fail_if_worse_than_start()
        return progress.solution()

    def _rho_at(self, prepared: PreparedRichardson, t: Tensor | int) -> Tensor:
        return prepared.rho if self.schedule == "constant" else prepared.rho / (1 + t) ** _DECAY

    def _step_size(
        self, operator: LinearOperator, top: Tensor | None, preconditioner: PreparedPreconditioner | None
    ) -> Tensor:
        if self.rho is not None:
            return torch.full((), self.rho, dtype=operator.dtype, device=operator.device)
        if preconditioner is None:
            assert top is not None  # `prepare` finds it wherever no step size is given
            return safe_reciprocal(top)
        if preconditioner.contracts:
            return torch.ones((), dtype=operator.dtype, device=operator.device)
        return safe_reciprocal(_preconditioned_lambda_max(operator, preconditioner))


def _preconditioned_lambda_max(operator: LinearOperator, preconditioner: PreparedPreconditioner) -> Tensor:
    """Power iteration on ``P⁻¹H``, self-adjoint in the ``H``-inner product, with the Rayleigh quotient of that."""
    vector = random_columns(operator)
    value = torch.ones((), dtype=operator.dtype, device=operator.device)
    tiny = torch.finfo(operator.dtype).tiny
    for _ in range(_COLD_STEPS):
        vector = vector / torch.linalg.vector_norm(vector).clamp_min(tiny)
        image = operator.matmul(vector)  # Hv
        moved = preconditioner.apply(image)  # P⁻¹Hv
        value = (image * moved).sum() / (vector * image).sum()
        vector = moved
    return value
