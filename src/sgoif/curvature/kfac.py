"""Kronecker-factored curvature: ``H ≈ G ⊗ A`` per layer and group, from inputs and output gradients alone.

``A = E[a aᵀ]`` over examples and positions (bias column included) and ``G = E_i[Σ_t b bᵀ]`` with the labels as given,
in the layout ``[G, O, I]``: ``G`` acts on outputs (left), ``A`` on inputs (right). The product equals the empirical
Fisher for one example at one position, and whenever ``a`` and ``b`` are independent; otherwise it drops their
correlation.

Damping, and with it the matrix that is solved, comes in two forms:

- ``factored`` (default): ``(G + γ tr(G)/O I) ⊗ (A + γ tr(A)/I I)`` with ``γ = relative_damping``. *That product is the
  definition of H.* It also damps the cross terms: large where either factor is large.
- ``additive``: ``G ⊗ A + λI``, ``λ = γ ×`` mean eigenvalue, solved exactly through the eigenvectors of both factors.

**Many outputs.** With ``diagonal_above``, the factored ``G`` of a layer with more outputs is a diagonal. Whole, that of
a head with many classes takes ``O²`` numbers in every observation and ``O³`` operations to factorise, and buys nothing:
on CIFAR-100 `harm` finds 42.0 AP with it and 42.4 without, on made data of 1,000 classes 54 and 64.

With ``eigenvalue_corrected`` (EK-FAC, George et al. 2018), the eigenvectors of ``G`` and ``A`` stay and the eigenvalues
become second moments of per-example gradients in that basis: the best diagonal there in Frobenius norm. Its damping is
additive.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from sgoif.curvature.base import Curvature, LayerState
from sgoif.curvature.statistic import Statistic, measure_second_moments
from sgoif.errors import CurvatureError
from sgoif.linalg import DiagonalKronecker, Kronecker, LinearOperator, RotatedDiagonal, eigh
from sgoif.records import BlockShape, GradientRows

__all__ = ["KroneckerCurvature"]


class KroneckerCurvature(Curvature):
    """K-FAC with per-factor damping by default; additive damping and corrected eigenvalues on request.

    >>> curvature = KroneckerCurvature({"fc": BlockShape(1, 1, 1, False)})
    >>> curvature.observe([GradientRows("fc", torch.full((1, 1, 1, 1), 2.0), torch.full((1, 1, 1, 1), 3.0))])
    >>> curvature.operator("fc", undamped=True).to_dense().round(decimals=3)
    tensor([[36.]])
    >>> curvature.operator("fc").to_dense().round(decimals=3)  # 9.9 x 4.4
    tensor([[43.5600]])

    Args:
        shapes: as in :class:`sgoif.curvature.Curvature`.
        damping_mode: ``"factored"`` or ``"additive"``, as above. A fixed ``damping`` of ``λ`` adds ``√λ`` to each
            factor, or ``λ``.
        eigenvalue_corrected: EK-FAC. The first observation gives the basis, and plain eigenvalues until the second.
        diagonal_above: outputs above which a factored ``G`` is a diagonal; it is whole if left out.
        basis_every: observations between two eigendecompositions of an EK-FAC basis; those may wait for the device. In
            between, absorbing never does.
        settings: as in :class:`sgoif.curvature.Curvature`.
    """

    def __init__(
        self,
        shapes: Mapping[str, BlockShape],
        *,
        damping_mode: Literal["factored", "additive"] = "factored",
        eigenvalue_corrected: bool = False,
        diagonal_above: int | None = None,
        basis_every: int = 20,
        **settings: Any,
    ) -> None:
        if damping_mode not in ("factored", "additive"):
            raise CurvatureError(f"damping_mode must be 'factored' or 'additive', got {damping_mode!r}.")
        if basis_every < 1:
            raise CurvatureError(f"basis_every must be at least 1 observation, got {basis_every}.")
        self.eigenvalue_corrected, self.basis_every = eigenvalue_corrected, basis_every
        self.diagonal_above = diagonal_above
        self.damping_mode = "additive" if eigenvalue_corrected else damping_mode
        super().__init__(shapes, **settings)

    def initial_state(self, shape: BlockShape) -> LayerState:
        groups, outputs, inputs = shape.dims
        like: dict[str, Any] = {"dtype": self.dtype, "device": self.device}
        sides = (outputs,) if self._is_diagonal(shape) else (outputs, outputs)
        state = {
            "inputs": torch.zeros(groups, inputs, inputs, **like),  # A
            "outputs": torch.zeros(groups, *sides, **like),  # G
        }
        if self.eigenvalue_corrected:
            state["input_basis"] = torch.eye(inputs, **like).repeat(groups, 1, 1)
            state["output_basis"] = torch.eye(outputs, **like).repeat(groups, 1, 1)
            state["eigenvalues"] = torch.zeros(groups, outputs, inputs, **like)
            state["eigenvalue_weight"] = torch.zeros((), **like)
        return state

    def _is_diagonal(self, shape: BlockShape) -> bool:
        is_many = self.diagonal_above is not None and shape.outputs > self.diagonal_above
        return is_many and self.damping_mode == "factored"

    def measure_layer(self, rows: GradientRows) -> dict[str, Statistic]:
        count, positions = rows.num_examples, rows.num_positions
        a, b = rows.inputs.to(self.dtype), rows.output_grads.to(self.dtype)
        is_diagonal = self._is_diagonal(self.shapes[rows.layer])
        outputs = b.square().sum((0, 3)) / max(count, 1) if is_diagonal else _outer(b, max(count, 1))
        found = {
            "inputs": Statistic(_outer(a, max(count * positions, 1)), count, "mean", is_symmetric=True),
            "outputs": Statistic(outputs, count, "mean", is_symmetric=not is_diagonal),
        }
        if self.eigenvalue_corrected:
            state = self._layer_state(rows.layer)
            rotated = GradientRows(rows.layer, state["input_basis"].mT @ a, state["output_basis"].mT @ b)
            found["eigenvalues"] = measure_second_moments(rotated, self.dtype, self.max_bytes)
        return found

    def absorb_layer(self, state: LayerState, statistics: Mapping[str, Statistic], ok: Tensor) -> LayerState:
        factors = {name: statistics[name] for name in ("inputs", "outputs")}
        new = super().absorb_layer(state, factors, ok)
        if not self.eigenvalue_corrected:
            return new
        before = self.counters.observations - self.absorbed
        if before:  # measured before there was a basis, the first moments are no eigenvalues of it
            one = torch.ones_like(state["eigenvalue_weight"])
            new["eigenvalue_weight"] = self.average(state["eigenvalue_weight"], one, ok)
            new["eigenvalues"] = self.average(state["eigenvalues"], statistics["eigenvalues"].tensor, ok)
        if -(-before // self.basis_every) < -(-self.counters.observations // self.basis_every):
            new = self._turn_basis({**state, **new})
        return new

    def undamped_operator(self, state: LayerState) -> LinearOperator:
        if not self.eigenvalue_corrected:
            return _product(self.corrected(state, "outputs"), self.corrected(state, "inputs"))
        left, right = state["output_basis"], state["input_basis"]
        weight = state["eigenvalue_weight"]
        # In the eigenbasis both factors are diagonal; these are the plain eigenvalues, for want of corrected ones.
        g = torch.einsum("gio,gij,gjo->go", left, self.corrected(state, "outputs"), left)
        a = torch.einsum("gio,gij,gjo->go", right, self.corrected(state, "inputs"), right)
        plain = (g[:, :, None] * a[:, None, :]).clamp_min(0.0)
        corrected = state["eigenvalues"] / torch.where(weight > 0, weight, torch.ones_like(weight))
        return RotatedDiagonal(left, right, torch.where(weight > 0, corrected, plain))

    def damped_operator(self, state: LayerState) -> LinearOperator:
        if self.damping_mode == "additive":
            return super().damped_operator(state)
        amounts = self.damping_amounts(state)
        return _product(
            _shift(self.corrected(state, "outputs"), amounts["outputs"]),
            _shift(self.corrected(state, "inputs"), amounts["inputs"]),
        )

    def damping_amounts(self, state: LayerState) -> dict[str, Tensor]:
        if self.damping_mode == "additive":
            return super().damping_amounts(state)
        amounts = {}
        for name in ("outputs", "inputs"):
            diagonals = {**state, name: _diagonal(state[name])}
            means = self.corrected(diagonals, name).mean(dim=1)  # tr/n, [groups]
            amount = self.automatic(means)
            amounts[name] = amount if self.fixed_damping is None else amount.sqrt()
        return amounts

    def _turn_basis(self, state: LayerState) -> LayerState:
        """Take new eigenvectors, and carry the eigenvalues over as the diagonal of the old matrix in the new basis."""
        right, left = eigh(state["inputs"]), eigh(state["outputs"])
        turn_left, turn_right = left.vectors.mT @ state["output_basis"], right.vectors.mT @ state["input_basis"]
        carried = RotatedDiagonal(turn_left, turn_right, state["eigenvalues"]).diagonal()
        return {
            **state,
            "input_basis": right.vectors,
            "output_basis": left.vectors,
            "eigenvalues": carried.reshape(state["eigenvalues"].shape),
        }


def _outer(rows: Tensor, count: int) -> Tensor:
    """Return ``Σ_{i,t} x xᵀ / count`` for every group, ``[B, G, N, T] -> [G, N, N]``."""
    flat: Tensor = rows.permute(1, 2, 0, 3).flatten(2) * count**-0.5  # [G, N, B·T]
    return flat @ flat.mT


def _shift(factor: Tensor, amounts: Tensor) -> Tensor:
    """``F + λI``, in place."""
    _diagonal(factor).add_(amounts[:, None])
    return factor


def _diagonal(factor: Tensor) -> Tensor:
    """The diagonals of ``[G, n, n]``, or of those given by them, ``[G, n]``."""
    return factor if factor.dim() == 2 else factor.diagonal(dim1=1, dim2=2)


def _product(outputs: Tensor, inputs: Tensor) -> LinearOperator:
    return DiagonalKronecker(outputs, inputs) if outputs.dim() == 2 else Kronecker(outputs, inputs)
