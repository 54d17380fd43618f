"""Per-class scores when there are many classes: never a direction per class, always pairs of examples.

With Kronecker curvature at the head, ``I(i, v) = -(1/m) Σ_{j in v} (b_iᵀ G⁻¹ b_j)(a_jᵀ A⁻¹ a_i)``: two matrix
products between the batch and the cached hold-out rows, then a sum per class. Cost ``B·M·(I + C)`` and memory
``B·M``, where K directions would cost ``B·K·C·I`` and hold ``K·C·I`` numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sgoif.gradients.contractions import widen
from sgoif.linalg import Kronecker, cholesky
from sgoif.records import GradientRows

__all__ = ["DualAnchors"]


class DualAnchors:
    """The most recent head rows of every hold-out example, preconditioned at each refresh.

    Args:
        size: hold-out examples.
        outputs: C.
        inputs: I, bias column included.
        labels: their classes, ``[M]``.
        num_classes: K.
        dtype: of the cached rows.
    """

    def __init__(
        self,
        size: int,
        outputs: int,
        inputs: int,
        labels: Tensor,
        num_classes: int,
        *,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        like: dict[str, Any] = {"device": labels.device, "dtype": dtype}
        self.labels, self.num_classes = labels, num_classes
        self.a = torch.zeros(size, inputs, **like)
        self.b = torch.zeros(size, outputs, **like)
        self.seen = torch.zeros(size, **like)
        self._solved_a, self._solved_b = self.a, self.b
        self._weights = torch.zeros(size, **like)

    def update(self, positions: Tensor, rows: GradientRows, trust: Tensor) -> None:
        """Replace the rows of the examples just seen."""
        self.a[positions] = widen(rows.inputs)[:, 0, :, 0]
        self.b[positions] = widen(rows.output_grads)[:, 0, :, 0]
        self.seen[positions] = 1.0
        weights = self.seen * trust
        counts = weights.new_zeros(self.num_classes).index_add_(0, self.labels, weights)
        self._weights = weights / counts.clamp_min(1e-12)[self.labels]

    def factorise(self, operator: Kronecker | None) -> None:
        """Apply ``A⁻¹`` and ``G⁻¹`` to the cached rows; None means ``H = I``. Once per refresh."""
        self._solved_a, self._solved_b = self.a, self.b
        if operator is not None:
            self._solved_a = cholesky(operator.right[0]).solve(self.a.mT).mT.to(self.a.dtype)
            self._solved_b = cholesky(operator.left[0]).solve(self.b.mT).mT.to(self.b.dtype)

    def dots(self, rows: GradientRows, *, identity: bool = False) -> Tensor:
        """``⟨φ_v, g_i⟩`` for every class, ``[B, K]``."""
        a, b = widen(rows.inputs)[:, 0, :, 0], widen(rows.output_grads)[:, 0, :, 0]
        other_a, other_b = (self.a, self.b) if identity else (self._solved_a, self._solved_b)
        pairs = (a @ other_a.mT) * (b @ other_b.mT) * self._weights
        return a.new_zeros(len(a), self.num_classes).index_add_(1, self.labels, pairs)

    @property
    def known(self) -> Tensor:
        """Which classes have at least one row, ``[K]``."""
        return self.seen.new_zeros(self.num_classes).index_add_(0, self.labels, self.seen) > 0

    def state_dict(self) -> dict[str, Tensor]:
        """All cached rows."""
        names = ("a", "b", "seen", "_solved_a", "_solved_b", "_weights")
        return {name: getattr(self, name).clone() for name in names}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue where another object stood."""
        for name, value in state.items():
            setattr(self, name, value.to(self.a))
