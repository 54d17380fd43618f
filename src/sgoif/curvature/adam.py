"""Adam's second moments as diagonal curvature: an average of squared gradients that the optimiser keeps anyway.

With ``power = 0.5``, ``H = diag(√v̂) + λI`` is what Adam itself divides its step by: ``H⁻¹ g`` then tells how far one
of its steps along an example's gradient moves an anchor's loss. With ``power = 1`` it is a diagonal Fisher matrix of
batches. Nothing is measured; it costs one copy of ``v`` whenever it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sgoif.curvature.base import Curvature, LayerState
from sgoif.curvature.statistic import Statistic
from sgoif.errors import CurvatureError
from sgoif.linalg import Diagonal, LinearOperator
from sgoif.records import BlockShape, GradientRows

__all__ = ["AdamCurvature"]


class AdamCurvature(Curvature):
    """``H = diag(v̂ᵖ) + λI`` with ``λ`` relative to the mean of that diagonal; the identity until it is read.

    Args:
        shapes: as in :class:`sgoif.curvature.Curvature`.
        power: ``p``, of the second moments.
        settings: as in :class:`sgoif.curvature.Curvature`.

    >>> curvature = AdamCurvature({"fc": BlockShape(1, 1, 2, False)}, damping=1.0)
    >>> curvature.read({"fc": torch.tensor([[[4.0, 9.0]]])})
    >>> curvature.operator("fc").diagonal()
    tensor([3., 4.])
    """

    def __init__(self, shapes: Mapping[str, BlockShape], *, power: float = 0.5, **settings: Any) -> None:
        if not 0 < power <= 1:
            raise CurvatureError(f"power must lie in (0, 1], got {power}.")
        self.power = power
        super().__init__(shapes, **settings)

    def initial_state(self, shape: BlockShape) -> LayerState:
        return {"diagonal": torch.zeros(shape.dims, dtype=self.dtype, device=self.device)}

    def measure_layer(self, rows: GradientRows) -> dict[str, Statistic]:
        return {}

    def absorb_layer(self, state: LayerState, statistics: Mapping[str, Statistic], ok: Tensor) -> LayerState:
        return {}

    def read(self, second_moments: Mapping[str, Tensor]) -> None:
        """Take second moments with their bias corrected, by layer ``[G, O, I]``; those not finite are passed over."""
        for layer, moments in second_moments.items():
            state = self._layer_state(layer)
            ok = moments.isfinite().all()
            state["diagonal"] = torch.where(ok, moments.to(self.dtype) ** self.power, state["diagonal"])
            state["skipped"] = state["skipped"] + (~ok).long()
        self._prepared.clear()

    def undamped_operator(self, state: LayerState) -> LinearOperator:
        return Diagonal(state["diagonal"].flatten())
