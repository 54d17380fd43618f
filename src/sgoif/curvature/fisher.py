"""The empirical Fisher of each layer, ``F = (1/n) Σ_i g_i g_iᵀ``: dense where it fits, else a streaming sketch.

The sketch keeps ``U`` ``[P, r]`` with ``F ≈ U Uᵀ``. Each batch is appended as columns and the result is cut back to its
``r`` strongest directions through the small Gram matrix, so nothing of size ``P×P`` is ever built. It is exact until it
has seen more than ``r`` examples; after that it forgets the weakest directions first, and ``U Uᵀ ⪯ F`` always. With the
diagonal of what it left out it is a backend of its own, :class:`LowRankCurvature`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sgoif.curvature.base import Curvature, LayerState
from sgoif.curvature.statistic import Statistic, at_least_one, gradient_chunks, measure_second_moments
from sgoif.errors import CurvatureError
from sgoif.linalg import Dense, LinearOperator, LowRankPlusDiagonal, eigh
from sgoif.linalg.factor import factor_dtype
from sgoif.records import BlockShape, GradientRows

__all__ = ["FisherCurvature", "LowRankCurvature", "compress"]

_AT_A_TIME = 4  # times the rank, of gradients that are compressed together


def compress(columns: Tensor, rank: int) -> Tensor:
    """Return ``U`` ``[P, rank]`` whose ``U Uᵀ`` is the best rank-``rank`` approximation of ``columns columnsᵀ``.

    ``O(P·m² + m³)`` for ``m`` columns, through their Gram matrix in float64 (the eigendecomposition may wait for the
    device). Missing columns are filled with zeros, so that the shape does not depend on the data.

    >>> compress(torch.eye(3)[:, :1], rank=2).shape
    torch.Size([3, 2])
    """
    count = columns.shape[1]
    if count <= rank:
        return torch.nn.functional.pad(columns, (0, rank - count))
    wide = columns.to(factor_dtype(columns.device))
    strongest = eigh(wide.mT @ wide, nonnegative=True).vectors[:, -rank:]  # eigenvalues ascend
    return columns @ strongest.to(columns.dtype)


def measure_factor(rows: GradientRows, rank: int, dtype: torch.dtype, max_bytes: int) -> Statistic:
    """Return columns whose outer products sum to ``Σ_i g_i g_iᵀ``: the gradients, or ``rank`` columns in their place.

    Exact for at most ``rank`` examples. Halves combine by standing side by side. The gradients are taken in a few
    ``rank`` at a time, for compressing costs the cube of their number.
    """
    size = rows.output_grads.shape[1] * rows.output_grads.shape[2] * rows.inputs.shape[2]
    columns = torch.zeros(size, 0, dtype=dtype, device=rows.inputs.device)
    for gradients in gradient_chunks(rows, dtype, min(max_bytes, _AT_A_TIME * rank * size * dtype.itemsize)):
        columns = torch.cat([columns, gradients.reshape(-1, size).mT], dim=1)
        columns = compress(columns, rank) if columns.shape[1] > rank else columns
    return Statistic(columns, rows.num_examples, "concat")


def absorb_factor(old: Tensor, statistic: Statistic, decay: float, ok: Tensor) -> Tensor:
    """Return the next ``U``: the average of ``U Uᵀ`` and the batch's Fisher, cut back to the columns of ``old``.

    ``[√decay U, √((1-decay)/n) g_1, ..., √((1-decay)/n) g_n]`` has exactly that average as its outer product.
    """
    share = (1 - decay) / at_least_one(statistic.count)
    columns = torch.cat([decay**0.5 * old, share**0.5 * statistic.tensor.to(old.dtype)], dim=1)
    return torch.where(ok, compress(columns, old.shape[1]), old)


def low_rank_operator(factor: Tensor, weight: Tensor) -> LowRankPlusDiagonal:
    """Return ``U Uᵀ / weight``, the bias-corrected sketch, as an operator with an empty diagonal."""
    scale = torch.where(weight > 0, weight, torch.ones_like(weight)).rsqrt()
    return LowRankPlusDiagonal(torch.zeros_like(factor[:, 0]), factor * scale)


class FisherCurvature(Curvature):
    """``H = F + λI`` with the empirical Fisher of each layer, ``λ`` relative to ``tr(F)/P``.

    >>> curvature = FisherCurvature({"fc": BlockShape(1, 1, 2, False)})
    >>> curvature.observe([GradientRows("fc", torch.tensor([[[[1.0], [2.0]]]]), torch.ones(1, 1, 1, 1))])
    >>> curvature.operator("fc", undamped=True).to_dense().round(decimals=3)
    tensor([[1., 2.],
            [2., 4.]])

    Args:
        shapes: as in :class:`Curvature`.
        dense_limit: layers with at most so many parameters keep the whole matrix.
        rank: columns of the sketch of larger layers; their absorbing may wait for the device.
        settings: as in :class:`Curvature`.
    """

    def __init__(
        self, shapes: Mapping[str, BlockShape], *, dense_limit: int = 2048, rank: int = 64, **settings: Any
    ) -> None:
        if rank < 1 or dense_limit < 0:
            raise CurvatureError(f"rank must be at least 1 and dense_limit at least 0, got {rank} and {dense_limit}.")
        self.dense_limit, self.rank = dense_limit, rank
        super().__init__(shapes, **settings)

    def initial_state(self, shape: BlockShape) -> LayerState:
        size = shape.numel
        if size <= self.dense_limit:
            return {"matrix": torch.zeros(size, size, dtype=self.dtype, device=self.device)}
        return {"factor": torch.zeros(size, min(self.rank, size), dtype=self.dtype, device=self.device)}

    def measure_layer(self, rows: GradientRows) -> dict[str, Statistic]:
        shape = self.shapes[rows.layer]
        if shape.numel > self.dense_limit:
            return {"factor": measure_factor(rows, min(self.rank, shape.numel), self.dtype, self.max_bytes)}
        total = torch.zeros(shape.numel, shape.numel, dtype=self.dtype, device=rows.inputs.device)
        for gradients in gradient_chunks(rows, self.dtype, self.max_bytes):
            flat = gradients.reshape(-1, shape.numel)
            total = total + flat.mT @ flat
        count = rows.num_examples
        return {"matrix": Statistic(total / max(count, 1), count, "mean", is_symmetric=True)}

    def absorb_layer(self, state: LayerState, statistics: Mapping[str, Statistic], ok: Tensor) -> LayerState:
        if "factor" in statistics:
            return {"factor": absorb_factor(state["factor"], statistics["factor"], self.kept, ok)}
        return super().absorb_layer(state, statistics, ok)

    def undamped_operator(self, state: LayerState) -> LinearOperator:
        if "matrix" in state:
            return Dense(self.corrected(state, "matrix"))
        return low_rank_operator(state["factor"], state["weight"])


class LowRankCurvature(Curvature):
    """``H = D + U Uᵀ + λI``: the sketch where the Fisher is strong, the diagonal for what the sketch left out.

    ``D = max(diag(F) - diag(U Uᵀ), 0)``, so the diagonal is not counted twice: ``diag(H - λI) = diag(F)`` wherever the
    sketch does not exceed it. ``λ`` is relative to the mean diagonal. Solves go through Woodbury, ``O(P r)`` per
    vector. Absorbing may wait for the device, as the sketch does.

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
            "factor": absorb_factor(state["factor"], statistics["factor"], self.kept, ok),
        }

    def undamped_operator(self, state: LayerState) -> LinearOperator:
        sketch = low_rank_operator(state["factor"], state["weight"])
        rest = self.corrected(state, "second_moment").flatten() - sketch.diagonal()
        return LowRankPlusDiagonal(rest.clamp_min(0.0), sketch.low_rank)
