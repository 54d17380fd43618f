"""The influence engine of sequences: one direction per group of evaluation sequences, solved at every refresh.

Directions are solved and not tracked: a solve costs one factorisation of small factors, those of an adapter, and the
curvature it is solved with is averaged over the training either way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from sgoif.curvature import AdamCurvature, Curvature, DiagonalCurvature, Statistic, create
from sgoif.distributed import Peers, SingleProcess, gather_pieces
from sgoif.errors import SgoifError
from sgoif.gradients import Capture, ExactSpace, Layer, LayerCapture, dot_directions, gradient_norms2, rows_by_layer
from sgoif.gradients.contractions import dots_and_norm2
from sgoif.influence.groups import AnchorGroups, Forward, GroupGradients
from sgoif.records import GradientRows
from sgoif.training.exchange import reduce_curvature
from sgoif.training.method import ADAM, Method

__all__ = ["SequenceEngine"]

_WIDEST = 2048  # inputs of a layer with a Kronecker factor: one that is wider would cost d³ at every refresh
_NO_GRADIENT = 1e-5  # of the largest in a layer: where no gradient arrives, float32 leaves about 1e-7
_NO_MOMENTS = (
    "curvature='adam' needs an optimiser with second moments (Adam, AdamW), and {} has none. Use curvature='kfac' or "
    "'diagonal'."
)
_OBSERVED = 4  # sequences of a step that curvature is read from: they have hundreds of positions each


class SequenceEngine:
    """One model's influence state.

    Args:
        layers: the scored layers.
        groups: of evaluation sequences.
        method: curvature and its settings.
        optimizer: whose second moments are read where the curvature is ``"adam"``.
        is_causal: whether the model shifts its labels.
        peers: the processes that train together. All hold the same state: what goes into it is exchanged first.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        groups: AnchorGroups,
        method: Method,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        is_causal: bool = True,
        peers: Peers | None = None,
    ) -> None:
        self.peers = peers or SingleProcess()
        self.layers, self.groups, self.is_causal = tuple(layers), groups, is_causal
        self.spaces = {layer.name: ExactSpace(layer) for layer in layers}
        weight = next(iter(self.layers[0].parameters.values()))
        self.dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
        self._gradients = GroupGradients(groups, self.spaces, is_causal=is_causal, dtype=self.dtype, peers=self.peers)
        self._optimizer = optimizer
        self.curvatures = self._make_curvatures(method, groups.device)
        self.lacks_moments = False  # whether the optimiser had none at the last refresh, which were to be read
        self._directions: dict[str, Tensor] | None = None  # solved, then as they are, [2K, G, O, I]
        self._sizes = torch.zeros(len(groups), device=groups.device, dtype=self.dtype)  # |g_v|

    def _make_curvatures(self, method: Method, device: torch.device) -> list[Curvature]:
        """One curvature for all layers, or a diagonal for those that are too wide for a Kronecker factor."""
        settings = {**(method.curvature_settings or {}), "device": device, "dtype": self.dtype}
        shapes = {name: space.shape for name, space in self.spaces.items()}
        if method.curvature == ADAM:
            self._check_optimizer()
            return [AdamCurvature(shapes, **settings)]
        if method.curvature != "kfac":
            return [create(method.curvature, shapes, **settings)]
        narrow = {name: shape for name, shape in shapes.items() if shape.inputs <= _WIDEST}
        wide = {name: shape for name, shape in shapes.items() if name not in narrow}
        found: list[Curvature] = []
        if narrow:
            found.append(create("kfac", narrow, **{"diagonal_above": _WIDEST, **settings}))
        if wide:
            found.append(DiagonalCurvature(wide, device=device, dtype=self.dtype))
        return found

    def _check_optimizer(self) -> None:
        """Raise unless the optimiser keeps second moments of the scored layers."""
        if self._optimizer is None:
            raise SgoifError("curvature='adam' reads the optimiser: pass it to watch(model, optimizer, ...).")
        groups = self._optimizer.param_groups
        if not all("betas" in group for group in groups):
            raise SgoifError(_NO_MOMENTS.format(type(self._optimizer).__name__))
        known = {id(parameter) for group in groups for parameter in group["params"]}
        for layer in self.layers:
            if not any(id(value) in known for value in layer.parameters.values()):
                raise SgoifError(
                    "curvature='adam' reads the optimiser, and the one that watch() was given does not train the "
                    f"scored layer {layer.name!r}."
                )

    @property
    def is_ready(self) -> bool:
        """Whether there is something to judge by."""
        return self._directions is not None

    @property
    def group_losses(self) -> dict[str, float]:
        """Mean loss per token of each group in its last draw. Waits for the device."""
        return dict(zip(self.groups.names, self._gradients.losses.tolist()))

    def direction(self, group: str | None = None) -> dict[str, Tensor]:
        """``H⁻¹g_v`` of a group by layer, ``[G, O, I]``; without a name, that of all evaluation sequences together.

        Raises:
            SgoifError: there is no such group, or no look at the groups yet.
        """
        names = self.groups.names
        if group is not None and group not in names:
            raise SgoifError(f"there is no group {group!r}; there are {', '.join(names)}.")
        if self._directions is None:
            raise SgoifError("the groups have not been looked at yet, so nothing is known of harm; train first.")
        if group is None:
            shares = self._sizes.new_tensor(list(self.groups.shares.values()))
            return {name: torch.tensordot(shares, part[: len(names)], 1) for name, part in self._directions.items()}
        return {name: part[names.index(group)] for name, part in self._directions.items()}

    # Scoring: reads the state, never changes it.

    def score(self, calls: Sequence[LayerCapture]) -> Tensor:
        """Harm by group, and the cosine of its negative gradient by group, ``[S, 2K]``; one row per sequence."""
        assert self._directions is not None, "refresh comes first"
        products, norms2 = self._contract(calls)
        count = len(self.groups)
        norms = norms2.sqrt()[:, None] * self._sizes
        cosines = -products[:, count:] / norms.clamp_min(torch.finfo(norms.dtype).tiny)
        return torch.cat([-products[:, :count], cosines], 1)

    def _contract(self, calls: Sequence[LayerCapture]) -> tuple[Tensor, Tensor]:
        assert self._directions is not None
        if len({call.layer for call in calls}) < len(calls):  # gradients of a layer's calls add before they are squared
            return dot_directions(calls, self.spaces, self._directions), gradient_norms2(calls, self.spaces)
        products, norms2 = [], []
        for call in calls:
            rows = self.spaces[call.layer].rows(replace(call, scale=1.0))  # the results are scaled, which are small
            product, norm2 = dots_and_norm2(rows, self._directions[call.layer])
            products.append(product * call.scale)
            norms2.append(norm2 * call.scale**2)
        return torch.stack(products).sum(0), torch.stack(norms2).sum(0)

    # Updating: once per optimiser step.

    def measure(self, calls: Sequence[LayerCapture], most: int = _OBSERVED) -> list[dict[str, Statistic]]:
        """What the first few sequences of a batch say of each curvature; changes nothing."""
        rows = rows_by_layer(calls, self.spaces)
        few = [_without_padding(GradientRows(n, r.inputs[:most], r.output_grads[:most])) for n, r in rows.items()]
        return [
            {}
            if isinstance(curvature, AdamCurvature)
            else curvature.measure(r for r in few if r.layer in curvature.shapes)
            for curvature in self.curvatures
        ]

    def absorb(self, measured: Sequence[Mapping[str, Statistic]]) -> None:
        """Take what all processes have measured into the curvatures."""
        for curvature, statistics in zip(self.curvatures, measured, strict=True):
            if not isinstance(curvature, AdamCurvature):
                curvature.absorb(reduce_curvature(self.peers, statistics))

    def refresh(self, model: nn.Module, capture: Capture, forward: Forward, per_refresh: int) -> int:
        """Draw from the groups and solve for their directions; returns the number of sequences seen."""
        seen = self._gradients.refresh(model, capture, forward, per_refresh)
        for curvature in self.curvatures:
            if isinstance(curvature, AdamCurvature):
                moments = self._second_moments()
                self.lacks_moments = not moments
                curvature.read(moments)
        plain = self._gradients.means
        solved = self.solve(plain)
        self._directions = {name: torch.cat([solved[name], plain[name]]) for name in self.spaces}
        self._sizes = torch.stack([part.flatten(1).square().sum(1) for part in plain.values()]).sum(0).sqrt()
        return seen

    def solve(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """``H⁻¹g`` of gradients by layer, ``[K, G, O, I]``, with the curvature as it is."""
        solved: dict[str, Tensor] = {}
        for curvature in self.curvatures:
            solved |= curvature.solve({name: gradients[name] for name in curvature.shapes})
        return solved

    def _second_moments(self) -> dict[str, Tensor]:
        """Adam's, with their bias corrected; of layers that it has not stepped yet there are none."""
        found: dict[str, Tensor] = {}
        for layer in self.layers:
            moments = {name: self._moment(value) for name, value in layer.parameters.items()}
            known = {name: value for name, value in moments.items() if value is not None}
            if len(known) == len(moments):
                found[layer.name] = layer.block(known)
        return found

    def _moment(self, parameter: nn.Parameter) -> Tensor | None:
        assert self._optimizer is not None
        state = self._optimizer.state.get(parameter) or {}
        if not state:
            return None
        if "exp_avg_sq" not in state:
            raise SgoifError(_NO_MOMENTS.format(type(self._optimizer).__name__))
        group = next(g for g in self._optimizer.param_groups if any(p is parameter for p in g["params"]))
        beta = float(group["betas"][1])
        moment: Tensor = gather_pieces(state["exp_avg_sq"].detach())
        steps = torch.as_tensor(state["step"], dtype=torch.float64)
        return moment / (1 - beta**steps).to(moment)

    @property
    def curvature_names(self) -> dict[str, list[str]]:
        """Which layers have which curvature."""
        return {type(curvature).__name__: list(curvature.shapes) for curvature in self.curvatures}

    def state_dict(self) -> dict[str, Any]:
        """All that later scores depend on."""
        directions = None if self._directions is None else {n: part.clone() for n, part in self._directions.items()}
        return {
            "gradients": self._gradients.state_dict(),
            "curvatures": [curvature.state_dict() for curvature in self.curvatures],
            "directions": directions,
            "sizes": self._sizes.clone(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where another engine stood."""
        self._gradients.load_state_dict(state["gradients"])
        for curvature, saved in zip(self.curvatures, state["curvatures"], strict=True):
            curvature.load_state_dict(saved)
        directions = state["directions"]
        self._directions = None if directions is None else {n: part.to(self._sizes) for n, part in directions.items()}
        self._sizes = state["sizes"].to(self._sizes)


def _without_padding(rows: GradientRows) -> GradientRows:
    """Inputs set to zero where no gradient arrives: padding tokens are no data, and would be in the input factor.

    The query of a first token has no gradient either, for it attends to one key; what arrives there is rounding error,
    and must not decide.
    """
    size = rows.output_grads.abs().amax(2, keepdim=True)
    is_used = size > _NO_GRADIENT * size.max()
    return GradientRows(rows.layer, rows.inputs * is_used.to(rows.inputs.dtype), rows.output_grads)
