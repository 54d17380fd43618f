"""Diagonal plus low rank: the sketch where the Fisher is strong, the diagonal for what the sketch left out.

``H = D + U Uᵀ + λI`` with ``D = max(diag(F) - diag(U Uᵀ), 0)``, so the diagonal is not counted twice: ``diag(H - λI) =
diag(F)`` wherever the sketch does not exceed it. Solves go through Woodbury, ``O(P r)`` per vector.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sgoif.curvature.base import Curvature, LayerState
from sgoif.curvature.diagonal import measure_second_moments
from sgoif.curvature.fisher import absorb_factor, low_rank_operator, measure_factor
from sgoif.curvature.statistic import Reduction, Statistic
from sgoif.errors import CurvatureError
from sgoif.linalg import LinearOperator, LowRankPlusDiagonal
from sgoif.records import BlockShape, GradientRows

__all__ = ["LowRankCurvature"]


class LowRankCurvature(Curvature):
    """``H = D + U Uᵀ + λI`` from the diagonal's averages and the Fisher's sketch, ``λ`` relative to the mean diagonal.

    Absorbing may wait for the device, as the sketch does.

    >>> curvature = LowRankCurvature({"fc": BlockShape(1, 1, 2, False)}, rank=1)
    >>> curvature.observe([GradientRows("fc", torch.tensor([[[[1.0], [2.0]]]]), torch.ones(1, 1, 1, 1))])
    >>> curvature.operator("fc", undamped=True).to_dense().round(decimals=3)
    tensor([[1., 2.],
            [2., 4.]])

    Args:
        shapes: as in :class:`sgoif.curvature.Curvature`.
        rank: columns of the sketch.
        settings: as in :class:`sgoif.curvature.Curvature`.
    """

    def __init__(self, shapes: Mapping[str, BlockShape], *, rank: int = 32, **settings: Any) -> None:
        if rank < 1:
            raise CurvatureError(f"rank must be at least 1, got {rank}; without low rank use the diagonal backend.")
        self.rank = rank
        super().__init__(shapes, **settings)

    def initial_state(self, shape: BlockShape) -> LayerState:
        rank = min(self.rank, shape.numel)
        return {
            "second_moment": torch.zeros(shape.dims, dtype=self.dtype, device=self.device),
            "factor": torch.zeros(shape.numel, rank, dtype=self.dtype, device=self.device),
        }

    def measure_layer(self, rows: GradientRows) -> dict[str, Statistic]:
        rank = min(self.rank, self.shapes[rows.layer].numel)
        return {
            "second_moment": measure_second_moments(rows, self.dtype, self.max_bytes),
            "factor": measure_factor(rows, rank, self.dtype, self.max_bytes),
        }

    def absorb_layer(self, state: LayerState, statistics: Mapping[str, Statistic], ok: Tensor) -> LayerState:
        return {
            "second_moment": self.average(state["second_moment"], statistics["second_moment"].tensor, ok),
            "factor": absorb_factor(state["factor"], statistics["factor"], self.decay, ok),
        }

    def undamped_operator(self, state: LayerState) -> LinearOperator:
        sketch = low_rank_operator(state["factor"], state["weight"])
        rest = self.corrected(state, "second_moment").flatten() - sketch.diagonal()
        return LowRankPlusDiagonal(rest.clamp_min(0.0), sketch.low_rank)

    def state_reductions(self) -> dict[str, Reduction]:
        return {"second_moment": "mean", "factor": "concat"}
