"""The curvature that knows nothing: ``H = I``, so that influence is a plain inner product of gradients.

The baseline that every other backend has to beat.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sgoif.curvature.base import Curvature, LayerState
from sgoif.curvature.statistic import Reduction, Statistic
from sgoif.linalg import Diagonal, LinearOperator
from sgoif.records import BlockShape, GradientRows

__all__ = ["IdentityCurvature"]


class IdentityCurvature(Curvature):
    """``H = I``: no state, no damping, nothing observed.

    >>> IdentityCurvature({"fc": BlockShape(1, 1, 2, False)}).operator("fc").diagonal()
    tensor([1., 1.])
    """

    def initial_state(self, shape: BlockShape) -> LayerState:
        return {"ones": torch.ones(shape.numel, dtype=self.dtype, device=self.device)}

    def measure_layer(self, rows: GradientRows) -> dict[str, Statistic]:
        return {}

    def absorb_layer(self, state: LayerState, statistics: Mapping[str, Statistic], ok: Tensor) -> LayerState:
        return {}

    def undamped_operator(self, state: LayerState) -> LinearOperator:
        return Diagonal(state["ones"])

    def damped_operator(self, state: LayerState) -> LinearOperator:
        return self.undamped_operator(state)

    def damping_amounts(self, state: LayerState) -> dict[str, Tensor]:
        return {}

    def state_reductions(self) -> dict[str, Reduction]:
        return {"ones": "same"}
