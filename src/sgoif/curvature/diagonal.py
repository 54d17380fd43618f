"""Diagonal curvature: second moments of per-example gradients, and the identity, the baseline of all backends.

The diagonal of the empirical Fisher is as cheap as the gradients themselves, and blind to every correlation between
parameters.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sgoif.curvature.base import Curvature, LayerState
from sgoif.curvature.statistic import Statistic, measure_second_moments
from sgoif.linalg import Diagonal, LinearOperator
from sgoif.records import BlockShape, GradientRows

__all__ = ["DiagonalCurvature", "IdentityCurvature"]


class DiagonalCurvature(Curvature):
    """``H = diag(E_i[g_i²]) + λI``, with ``λ`` relative to the mean of that diagonal.

    >>> curvature = DiagonalCurvature({"fc": BlockShape(1, 1, 1, False)})
    >>> curvature.observe([GradientRows("fc", torch.full((1, 1, 1, 1), 2.0), torch.full((1, 1, 1, 1), 3.0))])
    >>> curvature.operator("fc", undamped=True).diagonal().round(decimals=3)
    tensor([36.])
    """

    def initial_state(self, shape: BlockShape) -> LayerState:
        return {"second_moment": torch.zeros(shape.dims, dtype=self.dtype, device=self.device)}

    def measure_layer(self, rows: GradientRows) -> dict[str, Statistic]:
        return {"second_moment": measure_second_moments(rows, self.dtype, self.max_bytes)}

    def undamped_operator(self, state: LayerState) -> LinearOperator:
        return Diagonal(self.corrected(state, "second_moment").flatten())


class IdentityCurvature(Curvature):
    """``H = I``, so that influence is a plain inner product of gradients: no damping, nothing observed.

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
