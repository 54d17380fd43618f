"""The diagonal of the empirical Fisher: second moments of per-example gradients.

``H = diag(E_i[g_i²]) + λI``. As cheap as the gradients themselves, and blind to every correlation between parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sgoif.curvature.base import Curvature, LayerState
from sgoif.curvature.examples import second_moments
from sgoif.curvature.statistic import Reduction, Statistic
from sgoif.errors import CurvatureError
from sgoif.linalg import Diagonal, LinearOperator
from sgoif.records import BlockShape, GradientRows

__all__ = ["DiagonalCurvature", "measure_second_moments"]


def measure_second_moments(rows: GradientRows, dtype: torch.dtype, max_bytes: int) -> Statistic:
    """Return the batch's ``E_i[g_i²]``, ``[G, O, I]``; the mean weighs examples, so halves combine exactly."""
    return Statistic(second_moments(rows, dtype, max_bytes), rows.num_examples, "mean")


class DiagonalCurvature(Curvature):
    """``H = diag(E_i[g_i²]) + λI``, with ``λ`` relative to the mean of that diagonal.

    >>> curvature = DiagonalCurvature({"fc": BlockShape(1, 1, 1, False)})
    >>> curvature.observe([GradientRows("fc", torch.full((1, 1, 1, 1), 2.0), torch.full((1, 1, 1, 1), 3.0))])
    >>> curvature.operator("fc", undamped=True).diagonal().round(decimals=3), curvature.damping["fc"].rule
    (tensor([36.]), '0.1 x mean eigenvalue')
    """

    def initial_state(self, shape: BlockShape) -> LayerState:
        return {"second_moment": torch.zeros(shape.dims, dtype=self.dtype, device=self.device)}

    def measure_layer(self, rows: GradientRows) -> dict[str, Statistic]:
        return {"second_moment": measure_second_moments(rows, self.dtype, self.max_bytes)}

    def undamped_operator(self, state: LayerState) -> LinearOperator:
        return Diagonal(self.corrected(state, "second_moment").flatten())

    def state_reductions(self) -> dict[str, Reduction]:
        return {"second_moment": "mean"}

    def adopt(self, layer: str, second_moments: Tensor) -> None:
        """Take an optimiser's bias-corrected second moments as this layer's estimate, instead of measuring it.

        Adam averages the square of the *batch* gradient, which is smaller than the mean square of per-example gradients
        by up to the batch size; ranks within a layer are kept, the scale between layers is not. Non-finite moments are
        ignored.

        Raises:
            CurvatureError: the layer is unknown, or the moments are not ``[G, O, I]``.
        """
        state = self._layer_state(layer)
        if tuple(second_moments.shape) != self.shapes[layer].dims:
            raise CurvatureError(
                f"second moments of {layer!r} need shape {self.shapes[layer].dims}, got {tuple(second_moments.shape)}; "
                f"reshape the optimiser's weight moments and append the bias moments as last input."
            )
        new = second_moments.detach().to(state["second_moment"])
        ok = torch.isfinite(new).all() & (new >= 0).all()
        state["second_moment"] = torch.where(ok, new, state["second_moment"])
        state["weight"] = torch.where(ok, torch.ones_like(state["weight"]), state["weight"])
        self._prepared.pop(layer, None)
