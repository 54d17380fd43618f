"""Directions ``φ_v ≈ H⁻¹ g_v`` that follow a moving ``H`` and moving ``g_v``, one product per training step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sgoif.linalg import (
    LinearOperator,
    PreparedRichardson,
    Richardson,
    TwoLevel,
    flatten,
    follow_top_subspace,
    unflatten,
)
from sgoif.linalg.twolevel import PreparedTwoLevel
from sgoif.records import BlockShape

__all__ = ["DIVERGED", "Tracker"]

DIVERGED = 1e3  # a relative residual beyond it cannot be a moving target; seen in sound runs: up to about 5 (epoch 1)


class Tracker:
    """All anchors' directions as columns, advanced together.

    Args:
        shapes: the scored layers, in the order of the curvature's operator.
        num_anchors: ``K``.
        solver: Richardson with a leak of 800 steps by default, so that a direction means the same at any run length.
        subspace: how many dominant directions of the curvature are solved exactly at every step; 0 for none.
        subspace_every: operators after which those directions are looked for again.
        device: where the directions live.
        dtype: of the directions.

    >>> from sgoif.linalg import Diagonal
    >>> tracker = Tracker({"fc": BlockShape(1, 1, 2, False)}, 1)
    >>> tracker.use_operator(Diagonal(torch.tensor([1.0, 2.0])))
    >>> tracker.retarget({"fc": torch.tensor([[[[1.0, 4.0]]]])})
    >>> path, residuals = tracker.advance(steps=30)
    >>> residuals[0].tolist(), len(path)
    ([1.0], 30)
    >>> tracker.directions["fc"].round(decimals=1)
    tensor([[[[1., 2.]]]])
    """

    def __init__(
        self,
        shapes: Mapping[str, BlockShape],
        num_anchors: int,
        *,
        solver: Richardson | None = None,
        subspace: int = 0,
        subspace_every: int = 1,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.shapes = dict(shapes)
        self.solver = Richardson(leak_horizon=800) if solver is None else solver
        size = sum(shape.numel for shape in self.shapes.values())
        self.columns = torch.zeros(num_anchors, size, device=device, dtype=dtype).mT  # [P, K]
        self._goal = torch.zeros_like(self.columns)  # g
        self.resets = torch.zeros(num_anchors, dtype=torch.int64, device=device)
        self._prepared: PreparedRichardson | None = None
        self._is_loaded = False  # whether the vectors come from a saved state
        self._vectors: Sequence[Tensor] | None = None  # by which the largest eigenvalue was last found
        self._subspace, self._subspace_every, self._operators = subspace, subspace_every, 0
        self.basis: Tensor | None = None  # of the dominant directions, [P, r]

    def use_operator(self, operator: LinearOperator) -> None:
        """Take a new curvature operator; the step size follows its largest eigenvalue."""
        if self._prepared is not None and not self._is_loaded:
            self._vectors = self._prepared.vectors
        solver = self.solver
        if self._subspace:
            if not self._is_loaded and self._operators % self._subspace_every == 0:
                self.basis = follow_top_subspace(operator, self._subspace, self.basis)
            self._operators += not self._is_loaded
            if self.basis is not None:
                solver = replace(solver, preconditioner=TwoLevel(self.basis))
        self._is_loaded = False
        self._prepared = solver.prepare(operator, self._vectors)

    def retarget(self, gradients: Mapping[str, Tensor]) -> None:
        """Take new ``g_v``, by layer, ``[K, G, O, I]``."""
        self._goal = flatten(gradients, self.shapes).to(self.columns.dtype)

    def replace_directions(self, columns: Tensor) -> None:
        """Go on from other directions, ``[P, K]``."""
        self.columns = columns.to(self.columns)

    def forget(self, which: Tensor) -> None:
        """Let some directions, ``[K]``, start again from zero."""
        self.columns = torch.where(which, torch.zeros_like(self.columns), self.columns)

    @property
    def step_size(self) -> Tensor:
        """``ρ``, by which each step goes; 0-d."""
        assert self._prepared is not None, "use_operator comes first"
        preconditioner = self._prepared.preconditioner
        return preconditioner.rho if isinstance(preconditioner, PreparedTwoLevel) else self._prepared.rho

    def advance(self, steps: int = 1) -> tuple[list[Tensor], Tensor]:
        """Take Richardson steps towards ``H⁻¹ g``, without host synchronisation.

        A direction that turned non-finite, or ran away, starts again from zero after the last step, is counted in
        :attr:`resets`, and reports an infinite residual, which shuts its gate.

        Returns:
            The columns ``[P, K]`` after each step, and the relative residuals ``|g - Hφ| / |g|``, ``[steps, K]``, each
            of the directions before the step: one product serves both.
        """
        assert self._prepared is not None, "use_operator comes first"
        path, left = [], []
        columns, rhs = self.columns, self._goal
        for _ in range(steps):
            columns, residual = self.solver.step(self._prepared, columns, rhs)
            path.append(columns)
            left.append(torch.linalg.vector_norm(residual, dim=0))
        sizes: Tensor = torch.linalg.vector_norm(rhs, dim=0)
        relative = torch.stack(left) / sizes.clamp_min(torch.finfo(rhs.dtype).tiny)
        sound = relative < DIVERGED  # a NaN is not
        is_kept = torch.isfinite(columns).all(0) & sound.all(0)
        self.columns = path[-1] = torch.where(is_kept, columns, torch.zeros_like(columns))
        self.resets = self.resets + (~is_kept).to(self.resets.dtype)
        is_met = torch.cat([sound[:-1], is_kept[None]])
        return path, torch.where(is_met, relative, torch.full_like(relative, torch.inf))

    @property
    def step_bytes(self) -> int:
        """What it takes to remember one step."""
        return self.columns.nbytes

    @property
    def is_ready(self) -> bool:
        """Whether a curvature operator has been given."""
        return self._prepared is not None

    @property
    def directions(self) -> dict[str, Tensor]:
        """``φ`` by layer, ``[K, G, O, I]``."""
        return unflatten(self.columns, self.shapes)

    def state_dict(self) -> dict[str, Any]:
        """The directions, and where to look for the step size."""
        vectors = None if self._vectors is None else [vector.clone() for vector in self._vectors]
        return {
            "columns": self.columns.clone(),
            "resets": self.resets.clone(),
            "vectors": vectors,
            "basis": None if self.basis is None else self.basis.clone(),
            "operators": self._operators,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where another tracker stood; give it its operator afterwards."""
        self.columns, self.resets = state["columns"].to(self.columns), state["resets"].to(self.resets)
        self._is_loaded = True
        basis, vectors = state["basis"], state["vectors"]
        self.basis, self._operators = None if basis is None else basis.to(self.columns), int(state["operators"])
        self._vectors = None if vectors is None else [vector.to(self.columns) for vector in vectors]
