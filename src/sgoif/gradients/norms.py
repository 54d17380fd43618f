"""Rules for the affine part of BatchNorm, LayerNorm, GroupNorm and RMSNorm.

Each channel is a group of its own with one output and the inputs ``(x̂, 1)``, so a per-example gradient is just
``(Σ_t b x̂, Σ_t b)`` per channel: two numbers. Building it is always the cheapest contraction.

Under train-mode BatchNorm the statistics are those of the batch, as in the forward pass: the affine parameters of
example i act on its own ``x̂`` only, and the coupling through the statistics is already inside ``b``.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgoif.gradients.contractions import inner, widen
from sgoif.gradients.rules import AffineRule, LayerCapture, register, with_bias_row
from sgoif.records import BlockShape, GradientRows

__all__ = ["BatchNormRule", "GroupNormRule", "LayerNormRule", "RMSNormRule"]


class _NormRule(AffineRule):
    """What the norms share: one group per channel, gradients of one or two numbers."""

    def _channels(self, module: nn.Module) -> int:
        return cast(Tensor, module.weight).numel()

    def _has_bias(self, module: nn.Module) -> bool:
        return getattr(module, "bias", None) is not None

    def block_shape(self, module: nn.Module) -> BlockShape:
        has_bias = self._has_bias(module)
        return BlockShape(self._channels(module), 1, 1 + has_bias, has_bias)

    def unsupported(self, module: nn.Module) -> str | None:
        return None if isinstance(getattr(module, "weight", None), Tensor) else "it has no affine parameters"

    def to_block(self, module: nn.Module, tensors: Mapping[str, Tensor]) -> Tensor:
        weight = cast(Tensor, module.weight)
        names = ("weight", "bias") if self._has_bias(module) else ("weight",)
        flat = [tensors[name].flatten(tensors[name].dim() - weight.dim()) for name in names]
        return torch.stack(flat, -1).unsqueeze(-2)  # [..., C, 1, 2]

    def from_block(self, module: nn.Module, block: Tensor) -> dict[str, Tensor]:
        shape = cast(Tensor, module.weight).shape
        names = ("weight", "bias") if self._has_bias(module) else ("weight",)
        columns = block.squeeze(-2).unbind(-1)
        return {name: column.reshape(*block.shape[:-3], *shape) for name, column in zip(names, columns, strict=True)}

    @abstractmethod
    def normalise(self, call: LayerCapture) -> Tensor:
        """``x̂`` as ``[B, C, T]``."""

    @abstractmethod
    def apply_direction(self, call: LayerCapture, direction: Tensor) -> Tensor:
        """The layer's own forward pass with the direction as weight and bias, in the input's shape.

        One fused kernel, so for a single direction this beats the sums over positions.
        """

    @abstractmethod
    def channel_grads(self, call: LayerCapture) -> Tensor:
        """``b`` as ``[B, C, T]``."""

    def _parameters_of(
        self, call: LayerCapture, direction: Tensor, dtype: torch.dtype | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return weight and bias of a direction; in ``dtype`` for kernels that ask for the input's."""
        parts = self.from_block(call.module, direction)
        found = {name: part.contiguous().to(dtype or part.dtype) for name, part in parts.items()}
        return found["weight"], found.get("bias")

    def input_rows(self, call: LayerCapture) -> Tensor:
        return with_bias_row(self.normalise(call).unsqueeze(2), self._has_bias(call.module))

    def grad_rows(self, call: LayerCapture) -> Tensor:
        return self.channel_grads(call).unsqueeze(2)

    def materialise(self, call: LayerCapture) -> Tensor:
        grads = self.channel_grads(call)
        wide = widen(grads[:0]).dtype
        columns = [(self.normalise(call) * grads).sum(2, dtype=wide)]
        if self._has_bias(call.module):
            columns.append(grads.sum(2, dtype=wide))
        return torch.stack(columns, -1).unsqueeze(2) * call.scale

    def dots(self, call: LayerCapture, directions: Tensor) -> Tensor:
        if directions.shape[0] == 1 and math.prod(call.grad.shape[1:]) > self._channels(call.module):
            moved, grads = self.apply_direction(call, directions[0]), call.grad
            # everything but the example axis folded into two axes, a view for both common memory layouts
            shape = (grads.shape[0], 1, grads.shape[1], math.prod(grads.shape[2:]))
            return inner(moved.reshape(shape), grads.reshape(shape))[:, None] * call.scale
        examples = self.materialise(call).flatten(1)
        return examples @ directions.flatten(1).mT.to(examples.dtype)

    def norm2(self, call: LayerCapture) -> Tensor:
        return self.materialise(call).square().sum((1, 2, 3))

    def projected_rows(self, call: LayerCapture, left: Tensor, right: Tensor) -> GradientRows:
        # The sums over positions are the whole gradient: hand on one position, not T of them.
        projected = self.project(call, left, right)  # [B, C, 1, k_in]: as rows, b = 1
        ones = projected.new_ones(1).expand(*projected.shape[:2], projected.shape[2], 1)
        return GradientRows(call.layer, projected.mT, ones)

    def project(self, call: LayerCapture, left: Tensor, right: Tensor) -> Tensor:
        examples = self.materialise(call)
        return left.to(examples.dtype) @ examples @ right.to(examples.dtype).mT


class _StatisticsNormRule(_NormRule):
    """Channel-first norms, whose statistics do not vary over positions: ``Σ b x̂ = (Σ b x − μ Σ b) / σ``.

    That form reads ``x`` and ``b`` once each and never builds ``x̂``.
    """

    @abstractmethod
    def statistics(self, call: LayerCapture) -> tuple[Tensor, Tensor]:
        """Mean and reciprocal standard deviation, each broadcastable to ``[B, C]``."""

    def _channel_rows(self, values: Tensor) -> Tensor:
        return values.reshape(values.shape[0], values.shape[1], math.prod(values.shape[2:]))

    def channel_grads(self, call: LayerCapture) -> Tensor:
        return self._channel_rows(call.grad)

    def normalise(self, call: LayerCapture) -> Tensor:
        mean, inverse_std = self.statistics(call)
        return (widen(self._channel_rows(call.input)) - mean[..., None]) * inverse_std[..., None]

    def materialise(self, call: LayerCapture) -> Tensor:
        mean, inverse_std = self.statistics(call)
        grads, inputs = self.channel_grads(call), self._channel_rows(call.input)
        sum_b = grads.sum(2, dtype=mean.dtype)
        sum_bx = (grads * inputs.to(grads.dtype)).sum(2, dtype=mean.dtype)
        columns = [(sum_bx - mean * sum_b) * inverse_std]
        if self._has_bias(call.module):
            columns.append(sum_b)
        return torch.stack(columns, -1).unsqueeze(2) * call.scale


class BatchNormRule(_StatisticsNormRule):
    """``nn.BatchNorm1d/2d/3d``, with the batch's statistics in train mode and the running ones in eval mode."""

    def statistics(self, call: LayerCapture) -> tuple[Tensor, Tensor]:
        norm, (mean, variance) = cast(nn.BatchNorm2d, call.module), self._running(call)
        if mean is None or variance is None:
            # The forward kernel returns the batch's statistics too, many times faster than var_mean over channels.
            _, mean, inverse_std = torch.native_batch_norm(call.input, None, None, None, None, True, 0.0, norm.eps)
            return mean[None], inverse_std[None]
        return mean[None], (variance + norm.eps).rsqrt()[None]

    def apply_direction(self, call: LayerCapture, direction: Tensor) -> Tensor:
        norm, (mean, variance) = cast(nn.BatchNorm2d, call.module), self._running(call)
        weight, bias = self._parameters_of(call, direction)
        return F.batch_norm(call.input, mean, variance, weight, bias, training=mean is None, eps=norm.eps)

    def _running(self, call: LayerCapture) -> tuple[Tensor | None, Tensor | None]:
        norm = cast(nn.BatchNorm2d, call.module)
        return (None, None) if call.training else (norm.running_mean, norm.running_var)


class GroupNormRule(_StatisticsNormRule):
    """``nn.GroupNorm``."""

    def statistics(self, call: LayerCapture) -> tuple[Tensor, Tensor]:
        norm = cast(nn.GroupNorm, call.module)
        x = widen(call.input)
        grouped = x.reshape(x.shape[0], norm.num_groups, math.prod(x.shape[1:]) // norm.num_groups)
        variance, mean = torch.var_mean(grouped, 2, correction=0)
        repeat = norm.num_channels // norm.num_groups
        return mean.repeat_interleave(repeat, 1), (variance + norm.eps).rsqrt().repeat_interleave(repeat, 1)

    def apply_direction(self, call: LayerCapture, direction: Tensor) -> Tensor:
        norm, parameters = cast(nn.GroupNorm, call.module), self._parameters_of(call, direction, call.input.dtype)
        return F.group_norm(call.input, norm.num_groups, *parameters, norm.eps)


class _FeatureNormRule(_NormRule):
    """Norms over trailing feature axes; the axes before them are positions."""

    @abstractmethod
    def apply_norm(self, call: LayerCapture, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        """Return the layer's own forward pass with other parameters, in the input's shape."""

    def _feature_rows(self, call: LayerCapture, values: Tensor) -> Tensor:
        features = self._channels(call.module)
        positions = math.prod(values.shape[1:]) // features
        return values.reshape(values.shape[0], positions, features).mT

    def channel_grads(self, call: LayerCapture) -> Tensor:
        return self._feature_rows(call, call.grad)

    def normalise(self, call: LayerCapture) -> Tensor:
        return self._feature_rows(call, self.apply_norm(call))

    def apply_direction(self, call: LayerCapture, direction: Tensor) -> Tensor:
        return self.apply_norm(call, *self._parameters_of(call, direction, call.input.dtype))


class LayerNormRule(_FeatureNormRule):
    """``nn.LayerNorm`` over any trailing shape."""

    def apply_norm(self, call: LayerCapture, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        norm = cast(nn.LayerNorm, call.module)
        return F.layer_norm(call.input, norm.normalized_shape, weight, bias, norm.eps)


class RMSNormRule(_FeatureNormRule):
    """``nn.RMSNorm`` over any trailing shape; it has no bias."""

    def apply_norm(self, call: LayerCapture, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        norm = cast(nn.RMSNorm, call.module)
        return F.rms_norm(call.input, list(norm.normalized_shape), weight, norm.eps)


for kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
    register(kind, BatchNormRule())
register(nn.GroupNorm, GroupNormRule())
register(nn.LayerNorm, LayerNormRule())
register(nn.RMSNorm, RMSNormRule())
