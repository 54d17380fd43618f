"""Where directions and per-example gradients live: the layer's own shape, or a small random projection of it.

Both spaces speak in blocks ``[G, O, I]`` and hand curvature the same matrix form, so nothing above them knows which
one it works in.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

import sgoif.gradients.contractions as contractions
from sgoif.errors import CaptureError
from sgoif.gradients.layers import Layer
from sgoif.gradients.rules import LayerCapture, Rule
from sgoif.records import BlockShape, GradientRows

__all__ = [
    "ExactSpace",
    "ProjectedSpace",
    "Space",
    "combine_gradients",
    "dot_directions",
    "gradient_norms2",
    "rows_by_layer",
]


class Space(ABC):
    """The vector space in which one layer is scored."""

    def __init__(self, layer: Layer) -> None:
        self.layer = layer

    @property
    @abstractmethod
    def shape(self) -> BlockShape:
        """Shape of a vector of this space."""

    @abstractmethod
    def dots(self, call: LayerCapture, directions: Tensor) -> Tensor:
        """``⟨φ_k, g_i⟩`` for ``directions [K, G, O, I]``, as ``[B, K]``."""

    @abstractmethod
    def examples(self, call: LayerCapture) -> Tensor:
        """Every ``g_i`` in this space, ``[B, G, O, I]``."""

    @abstractmethod
    def rows(self, call: LayerCapture) -> GradientRows:
        """Matrix form of the gradients in this space."""

    @abstractmethod
    def norm2(self, call: LayerCapture) -> Tensor:
        """``|g_i|²`` in this space, ``[B]``."""

    def combine(self, call: LayerCapture, weights: Tensor) -> Tensor:
        """``Σ_i w_ik g_i`` for ``weights [B, K]``, as ``[K, G, O, I]``."""
        return contractions.combine(self.rows(call), weights)


class ExactSpace(Space):
    """The layer's own parameters: inner products are exact."""

    @property
    def shape(self) -> BlockShape:
        return self.layer.shape

    def dots(self, call: LayerCapture, directions: Tensor) -> Tensor:
        return _rule(call).dots(call, directions)

    def examples(self, call: LayerCapture) -> Tensor:
        return _rule(call).materialise(call)

    def rows(self, call: LayerCapture) -> GradientRows:
        return _rule(call).rows(call)

    def norm2(self, call: LayerCapture) -> Tensor:
        return _rule(call).norm2(call)


class ProjectedSpace(Space):
    """``P_out g P_inᵀ`` per group, with Gaussian entries of variance ``1/k``: inner products are unbiased.

    A side that is no larger than the rank keeps its own coordinates, so a small layer is exact here too. The
    projections depend on ``seed`` and the layer's name only: every process and every resumed run has the same.

    Args:
        layer: the layer.
        rank: ``k`` on both sides.
        seed: of the projections.
        device: where they live; the layer's parameters' device by default.
    """

    def __init__(self, layer: Layer, *, rank: int = 16, seed: int = 0, device: torch.device | None = None) -> None:
        super().__init__(layer)
        if rank < 1:
            raise CaptureError(f"rank must be at least 1, got {rank}.")
        shape = layer.shape
        parameter = next(iter(layer.parameters.values()))
        dtype = torch.float64 if parameter.dtype == torch.float64 else torch.float32
        digest = hashlib.sha256(f"{seed}/{layer.name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        device = parameter.device if device is None else device
        self.left = _projection(shape.groups, rank, shape.outputs, generator).to(device, dtype)
        self.right = _projection(shape.groups, rank, shape.inputs, generator).to(device, dtype)

    @property
    def shape(self) -> BlockShape:
        return BlockShape(self.left.shape[0], self.left.shape[1], self.right.shape[1], False)

    def dots(self, call: LayerCapture, directions: Tensor) -> Tensor:
        examples = self.examples(call).flatten(1)
        return examples @ directions.flatten(1).mT.to(examples.dtype)

    def examples(self, call: LayerCapture) -> Tensor:
        return _rule(call).project(call, self.left, self.right)

    def rows(self, call: LayerCapture) -> GradientRows:
        return _rule(call).projected_rows(call, self.left, self.right)

    def norm2(self, call: LayerCapture) -> Tensor:
        return self.examples(call).square().sum((1, 2, 3))


def _projection(groups: int, rank: int, size: int, generator: torch.Generator) -> Tensor:
    """``[G, k, size]`` with ``E[PᵀP] = I``; the identity where ``k`` would not be smaller."""
    if rank >= size:
        return torch.eye(size, dtype=torch.float64).expand(groups, size, size).contiguous()
    drawn = torch.randn(groups, rank, size, generator=generator, dtype=torch.float64)
    return drawn / math.sqrt(rank)


def _rule(call: LayerCapture) -> Rule:
    assert isinstance(call.rule, Rule), "composite captures are split before they leave Capture"
    return call.rule


def dot_directions(
    calls: Iterable[LayerCapture], spaces: Mapping[str, Space], directions: Mapping[str, Tensor]
) -> Tensor:
    """``Σ_layers ⟨φ_k, g_i⟩`` over every captured call, ``[B, K]``; a layer called twice counts both calls."""
    parts = [spaces[call.layer].dots(call, directions[call.layer]) for call in calls if call.layer in directions]
    if not parts:
        raise CaptureError("Nothing was captured for the directions' layers; was backward run inside the capture?")
    return torch.stack(parts).sum(0) if len(parts) > 1 else parts[0]


def rows_by_layer(calls: Iterable[LayerCapture], spaces: Mapping[str, Space]) -> dict[str, GradientRows]:
    """The matrix form of every layer; the positions of a layer's calls stand side by side, which adds its gradients."""
    found: dict[str, GradientRows] = {}
    for call in calls:
        rows, old = spaces[call.layer].rows(call), found.get(call.layer)
        if old is not None:
            inputs = torch.cat([old.inputs, rows.inputs], 3)
            rows = GradientRows(call.layer, inputs, torch.cat([old.output_grads, rows.output_grads], 3))
        found[call.layer] = rows
    return found


def combine_gradients(calls: Iterable[LayerCapture], spaces: Mapping[str, Space], weights: Tensor) -> dict[str, Tensor]:
    """``Σ_i w_ik g_i`` per layer, ``[K, G, O, I]`` each, summed over a layer's calls."""
    total: dict[str, Tensor] = {}
    for call in calls:
        part = spaces[call.layer].combine(call, weights)
        total[call.layer] = total[call.layer] + part if call.layer in total else part
    return total


def gradient_norms2(calls: Iterable[LayerCapture], spaces: Mapping[str, Space]) -> Tensor:
    """``Σ_layers |g_i|²``, ``[B]``. A layer called twice is built, for its gradients add before they are squared."""
    by_layer: dict[str, list[LayerCapture]] = {}
    for call in calls:
        by_layer.setdefault(call.layer, []).append(call)
    parts = []
    for layer, group in by_layer.items():
        space = spaces[layer]
        if len(group) == 1:
            parts.append(space.norm2(group[0]))
        else:
            parts.append(torch.stack([space.examples(call) for call in group]).sum(0).square().sum((1, 2, 3)))
    return torch.stack(parts).sum(0)
