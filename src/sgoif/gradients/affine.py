"""Rules for Linear, Embedding, convolutions and transposed convolutions.

A convolution is a Linear applied to unfolded patches. The patches are never unfolded where the convolution itself
will do: ``⟨φ, g_i⟩ = ⟨b_i, conv(a_i, Φ)⟩`` and projecting the inputs is a convolution with ``k_in`` filters. A
transposed convolution is the convolution of the zero-stuffed input, which is how its rows are built.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgoif.errors import CaptureError
from sgoif.gradients.contractions import inner, widen
from sgoif.gradients.rules import AffineRule, LayerCapture, WeightRule, register, register_name, with_bias_row
from sgoif.records import BlockShape, GradientRows

__all__ = ["ConvRule", "ConvTransposeRule", "EmbeddingRule", "LinearRule", "TransposedLinearRule"]

PATCH_BYTES = 32 * 2**20  # of unfolded patches at a time: more is handed back to the system and costs its page faults


class LinearRule(WeightRule):
    """``nn.Linear`` with any number of axes between the example axis and the features; those are its positions."""

    def block_shape(self, module: nn.Module) -> BlockShape:
        linear = cast(nn.Linear, module)
        has_bias = linear.bias is not None
        return BlockShape(1, linear.out_features, linear.in_features + has_bias, has_bias)

    def fold(self, module: nn.Module, weight: Tensor) -> Tensor:
        return weight.unsqueeze(-3)

    def unfold(self, module: nn.Module, block: Tensor) -> Tensor:
        return block.squeeze(-3)

    def input_rows(self, call: LayerCapture) -> Tensor:
        values = call.input.to(call.grad.dtype)
        if cast(nn.Linear, call.module).bias is not None:
            values = F.pad(values, (0, 1), value=1.0)  # the row of ones, while features lie innermost
        return _positions_last(values)

    def grad_rows(self, call: LayerCapture) -> Tensor:
        return _positions_last(call.grad)

    def through(self, call: LayerCapture, weight: Tensor) -> Tensor:
        kernel, bias = _split_bias(weight.to(call.grad.dtype), cast(nn.Linear, call.module).bias is not None)
        return _positions_last(F.linear(call.input.to(kernel.dtype), kernel[0], bias))

    def projected_rows(self, call: LayerCapture, left: Tensor, right: Tensor) -> GradientRows:
        # features lie innermost here: projecting them as a Linear does needs no transposed copy of the gradient
        projected = _positions_last(F.linear(call.grad, left[0].to(call.grad.dtype)))
        return GradientRows(call.layer, widen(self.through(call, right)), widen(projected) * call.scale)


class TransposedLinearRule(LinearRule):
    """A Linear whose weight is stored as ``[in, out]``: the ``Conv1D`` of GPT-2 in Transformers."""

    def block_shape(self, module: nn.Module) -> BlockShape:
        inputs, outputs = cast(Tensor, module.weight).shape
        return BlockShape(1, outputs, inputs + 1, True)

    def fold(self, module: nn.Module, weight: Tensor) -> Tensor:
        return weight.mT.unsqueeze(-3)

    def unfold(self, module: nn.Module, block: Tensor) -> Tensor:
        return block.squeeze(-3).mT


def _positions_last(values: Tensor) -> Tensor:
    """``[B, *positions, F] -> [B, 1, F, T]`` as a view where the layout allows."""
    positions = math.prod(values.shape[1:-1])
    return values.reshape(values.shape[0], positions, values.shape[-1]).mT.unsqueeze(1)


class EmbeddingRule(AffineRule):
    """``nn.Embedding``: its input is one-hot, so a contraction is a look-up; scoring never builds the one-hot rows."""

    MAX_ONE_HOT = 2**24  # entries; beyond it a dense matrix form would be a memory accident

    def block_shape(self, module: nn.Module) -> BlockShape:
        embedding = cast(nn.Embedding, module)
        return BlockShape(1, embedding.embedding_dim, embedding.num_embeddings, False)

    def unsupported(self, module: nn.Module) -> str | None:
        embedding = cast(nn.Embedding, module)
        if embedding.max_norm is not None:
            return "Embedding with max_norm rewrites its weights in the forward pass"
        if embedding.scale_grad_by_freq:
            return "Embedding with scale_grad_by_freq has gradients that depend on the whole batch"
        return None

    def to_block(self, module: nn.Module, tensors: Mapping[str, Tensor]) -> Tensor:
        return tensors["weight"].mT.unsqueeze(-3)

    def from_block(self, module: nn.Module, block: Tensor) -> dict[str, Tensor]:
        return {"weight": block.squeeze(-3).mT}

    def _ids(self, call: LayerCapture) -> Tensor:
        return call.input.reshape(call.num_examples, -1)  # [B, T]

    def grad_rows(self, call: LayerCapture) -> Tensor:
        grads = _positions_last(call.grad)
        padding = cast(nn.Embedding, call.module).padding_idx
        if padding is None:
            return grads
        return grads * (self._ids(call) != padding)[:, None, None, :]  # the padding vector receives no gradient

    def input_rows(self, call: LayerCapture) -> Tensor:
        ids, entries = self._ids(call), cast(nn.Embedding, call.module).num_embeddings
        if ids.numel() * entries > self.MAX_ONE_HOT:
            raise CaptureError(
                f"{call.layer}: the matrix form of {ids.numel()} tokens over {entries} entries is too large; "
                "use curvature='identity' or 'diagonal' for this layer, or leave it out."
            )
        return F.one_hot(ids, entries).mT.unsqueeze(1).to(call.grad.dtype)

    def through(self, call: LayerCapture, weight: Tensor) -> Tensor:
        return weight[0].to(call.grad.dtype)[:, self._ids(call)].movedim(0, 1).unsqueeze(1)  # [B, 1, k, T]

    def dots(self, call: LayerCapture, directions: Tensor) -> Tensor:
        grads = self.grad_rows(call)
        columns = [inner(self.through(call, direction), grads) for direction in directions]
        return torch.stack(columns, 1) * call.scale

    def norm2(self, call: LayerCapture) -> Tensor:
        grads, ids = widen(self.grad_rows(call))[:, 0], self._ids(call)
        same = ids[:, :, None] == ids[:, None, :]
        return ((grads.mT @ grads) * same).sum((1, 2)) * call.scale**2

    def materialise(self, call: LayerCapture) -> Tensor:
        grads, ids = widen(self.grad_rows(call))[:, 0], self._ids(call)  # [B, O, T], [B, T]
        entries = cast(nn.Embedding, call.module).num_embeddings
        block = grads.new_zeros(grads.shape[0], grads.shape[1], entries)
        block.scatter_add_(2, ids[:, None, :].expand_as(grads), grads)
        return block.unsqueeze(1) * call.scale


class _ConvolutionRule(WeightRule):
    """What both directions of convolution share: the functional form, and blocks of patches with a bias column."""

    def __init__(self, conv: Callable[..., Tensor], spatial: int) -> None:
        self._conv, self._spatial = conv, spatial

    def block_shape(self, module: nn.Module) -> BlockShape:
        conv = cast(nn.Conv2d, module)
        has_bias = conv.bias is not None
        patch = conv.in_channels // conv.groups * math.prod(conv.kernel_size)
        return BlockShape(conv.groups, conv.out_channels // conv.groups, patch + has_bias, has_bias)

    def grad_rows(self, call: LayerCapture) -> Tensor:
        return _channel_rows(self._check_batch(call.grad), cast(nn.Conv2d, call.module).groups)

    def _check_batch(self, values: Tensor) -> Tensor:
        if values.dim() != self._spatial + 2:
            raise CaptureError(f"a convolution was called without an example axis: its input has shape {values.shape}.")
        return values


class ConvRule(_ConvolutionRule):
    """``nn.Conv1d/2d/3d`` with stride, padding of every mode, dilation and groups."""

    def fold(self, module: nn.Module, weight: Tensor) -> Tensor:
        shape, lead = self.block_shape(module), weight.shape[: weight.dim() - 2 - self._spatial]
        return weight.reshape(*lead, shape.groups, shape.outputs, -1)

    def unfold(self, module: nn.Module, block: Tensor) -> Tensor:
        return block.reshape(*block.shape[:-3], *cast(nn.Conv2d, module).weight.shape)

    def input_rows(self, call: LayerCapture) -> Tensor:
        conv = cast(nn.Conv2d, call.module)
        x = _pad(conv, self._check_batch(call.input).to(call.grad.dtype))
        patches = _unfold(x, conv.kernel_size, conv.stride, conv.dilation)  # [B, C, *out, *kernel]
        return with_bias_row(_patch_rows(patches, conv.groups, self._spatial), conv.bias is not None)

    def materialise(self, call: LayerCapture) -> Tensor:
        shape, positions = self.block_shape(call.module), math.prod(call.grad.shape[2:])
        size = max(1, PATCH_BYTES // max(call.grad.element_size() * shape.groups * shape.inputs * positions, 1))
        if size >= call.num_examples:
            return super().materialise(call)
        inputs, grads = call.input.split(size), call.grad.split(size)
        parts = [replace(call, inputs=(x,), output_grad=b, batch_axis=0, extras={}) for x, b in zip(inputs, grads)]
        return torch.cat([super(ConvRule, self).materialise(part) for part in parts])

    def through(self, call: LayerCapture, weight: Tensor) -> Tensor:
        conv = cast(nn.Conv2d, call.module)
        kernel, bias = _split_bias(weight.to(call.grad.dtype), conv.bias is not None)
        kernel = kernel.reshape(-1, conv.in_channels // conv.groups, *conv.kernel_size)
        x, padding = self._check_batch(call.input).to(kernel.dtype), conv.padding
        if conv.padding_mode != "zeros":
            x, padding = _pad(conv, x), (0,) * self._spatial
        out = self._conv(x, kernel, bias, conv.stride, padding, conv.dilation, conv.groups)
        return _channel_rows(out, conv.groups)


class ConvTransposeRule(_ConvolutionRule):
    """``nn.ConvTranspose1d/2d/3d``; its rows are the patches of the zero-stuffed input."""

    def fold(self, module: nn.Module, weight: Tensor) -> Tensor:
        shape, lead = self.block_shape(module), weight.shape[: weight.dim() - 2 - self._spatial]
        weight = weight.reshape(*lead, shape.groups, -1, shape.outputs, *weight.shape[-self._spatial :])
        weight = weight.transpose(len(lead) + 1, len(lead) + 2)  # [..., G, O, C/G, *kernel]
        return weight.reshape(*lead, shape.groups, shape.outputs, -1)

    def unfold(self, module: nn.Module, block: Tensor) -> Tensor:
        conv, lead = cast(nn.ConvTranspose2d, module), block.shape[:-3]
        block = block.reshape(*block.shape[:-1], conv.in_channels // conv.groups, *conv.kernel_size)
        return block.transpose(len(lead) + 1, len(lead) + 2).reshape(*lead, *conv.weight.shape)

    def _output_padding(self, call: LayerCapture) -> tuple[int, ...]:
        """Read off the output's size, for ``output_size=`` may have been passed to the call."""
        conv = cast(nn.ConvTranspose2d, call.module)
        padding = cast(tuple[int, ...], conv.padding)
        return tuple(
            call.grad.shape[2 + d]
            - ((call.input.shape[2 + d] - 1) * conv.stride[d] - 2 * padding[d])
            - (conv.dilation[d] * (conv.kernel_size[d] - 1) + 1)
            for d in range(self._spatial)
        )

    def input_rows(self, call: LayerCapture) -> Tensor:
        conv, x = cast(nn.ConvTranspose2d, call.module), call.input.to(call.grad.dtype)
        padding, extra = cast(tuple[int, ...], conv.padding), self._output_padding(call)
        sizes = [(x.shape[2 + d] - 1) * conv.stride[d] + 1 for d in range(self._spatial)]
        stuffed = x.new_zeros(*x.shape[:2], *sizes)
        occupied = (slice(None), slice(None), *(slice(None, None, s) for s in conv.stride))
        stuffed[occupied] = x
        margin: list[int] = []
        for d in reversed(range(self._spatial)):
            edge = conv.dilation[d] * (conv.kernel_size[d] - 1) - padding[d]
            margin += [edge, edge + extra[d]]
        ones = (1,) * self._spatial
        patches = _unfold(F.pad(stuffed, margin), conv.kernel_size, ones, conv.dilation)
        patches = patches.flip(tuple(range(-self._spatial, 0)))  # a transposed convolution flips its kernel
        return with_bias_row(_patch_rows(patches, conv.groups, self._spatial), conv.bias is not None)

    def through(self, call: LayerCapture, weight: Tensor) -> Tensor:
        conv = cast(nn.ConvTranspose2d, call.module)
        kernel, bias = _split_bias(weight.to(call.grad.dtype), conv.bias is not None)
        kernel = kernel.reshape(*kernel.shape[:2], conv.in_channels // conv.groups, *conv.kernel_size)
        kernel = kernel.transpose(1, 2).flatten(0, 1)  # [C, k, *kernel]
        x, extra = call.input.to(kernel.dtype), self._output_padding(call)
        out = self._conv(x, kernel, bias, conv.stride, conv.padding, extra, conv.groups, conv.dilation)
        return _channel_rows(out, conv.groups)


def _split_bias(weight: Tensor, has_bias: bool) -> tuple[Tensor, Tensor | None]:
    """``[G, k, I]`` into the kernel part and the bias ``[G·k]``, both contiguous: kernels are slow on strided ones."""
    if not has_bias:
        return weight, None
    return weight[..., :-1].contiguous(), weight[..., -1].reshape(-1).contiguous()


def _channel_rows(values: Tensor, groups: int) -> Tensor:
    """``[B, C, *positions] -> [B, G, C/G, T]``."""
    channels, positions = values.shape[1], math.prod(values.shape[2:])
    return values.reshape(values.shape[0], groups, channels // groups, positions)


def _pad(conv: Any, x: Tensor) -> Tensor:
    margin = conv._reversed_padding_repeated_twice  # resolves 'same' and 'valid' too
    mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
    return F.pad(x, margin, mode=mode) if any(margin) else x


def _unfold(x: Tensor, kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]) -> Tensor:
    """Sliding patches of any number of dimensions, as a view: ``[B, C, *out, *kernel]``."""
    for d, (k, s, step) in enumerate(zip(kernel, stride, dilation, strict=True)):
        x = x.unfold(2 + d, (k - 1) * step + 1, s)[..., ::step]
    return x


def _patch_rows(patches: Tensor, groups: int, spatial: int) -> Tensor:
    """``[B, C, *out, *kernel] -> [B, G, C/G·kernel, T]``; this is where the patches are copied."""
    order = (0, 1, *range(2 + spatial, 2 + 2 * spatial), *range(2, 2 + spatial))
    batch, channels = patches.shape[:2]
    positions = math.prod(patches.shape[2 : 2 + spatial])
    taps = math.prod(patches.shape[2 + spatial :])
    return patches.permute(order).reshape(batch, groups, channels // groups * taps, positions)


register(nn.Linear, LinearRule())
register_name("transformers.pytorch_utils.Conv1D", TransposedLinearRule())
register(nn.Embedding, EmbeddingRule())
register(nn.Conv1d, ConvRule(F.conv1d, 1))
register(nn.Conv2d, ConvRule(F.conv2d, 2))
register(nn.Conv3d, ConvRule(F.conv3d, 3))
register(nn.ConvTranspose1d, ConvTransposeRule(F.conv_transpose1d, 1))
register(nn.ConvTranspose2d, ConvTransposeRule(F.conv_transpose2d, 2))
register(nn.ConvTranspose3d, ConvTransposeRule(F.conv_transpose3d, 3))
