"""The rule for ``nn.MultiheadAttention``, which never calls its ``out_proj`` and hides q, k and v in one parameter.

The module's input and the gradient at its output are captured; the attention in between is recomputed once from the
projected q, k and v, which gives the context (the input of ``out_proj``) and, by one backward pass through the
attention alone, the gradients at q, k and v (the outputs of ``in_proj``). Cost: about one more attention, without the
projections' weight gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgoif.errors import CaptureError
from sgoif.gradients.rules import CompositeRule, LayerCapture, Rule, WeightRule, register, with_bias_row
from sgoif.records import BlockShape

__all__ = ["MultiheadAttentionRule"]

_ARGUMENTS = ("query", "key", "value", "key_padding_mask", "need_weights", "attn_mask")


class _GivenRows(WeightRule):
    """A layer whose capture already is in matrix form: inputs ``[B, G, I, T]``, gradients ``[B, G, O, T]``."""

    def input_rows(self, call: LayerCapture) -> Tensor:
        return call.input

    def grad_rows(self, call: LayerCapture) -> Tensor:
        return call.grad


class _InProjection(_GivenRows):
    """q, k and v as three groups of one map."""

    prefix = "in_proj_"

    def block_shape(self, module: nn.Module) -> BlockShape:
        width, has_bias = _width(module), _attention(module).in_proj_bias is not None
        return BlockShape(3, width, width + has_bias, has_bias)

    def parameters(self, module: nn.Module) -> dict[str, nn.Parameter]:
        found = {name: getattr(module, name) for name in ("in_proj_weight", "in_proj_bias")}
        return {name: value for name, value in found.items() if value is not None}

    def fold(self, module: nn.Module, weight: Tensor) -> Tensor:
        return weight.reshape(*weight.shape[:-2], 3, _width(module), _width(module))

    def unfold(self, module: nn.Module, block: Tensor) -> Tensor:
        return block.flatten(-3, -2)


class _OutProjection(_GivenRows):
    prefix = "out_proj."

    def block_shape(self, module: nn.Module) -> BlockShape:
        width, has_bias = _width(module), _attention(module).out_proj.bias is not None
        return BlockShape(1, width, width + has_bias, has_bias)

    def parameters(self, module: nn.Module) -> dict[str, nn.Parameter]:
        return {f"out_proj.{name}": value for name, value in _attention(module).out_proj.named_parameters()}

    def fold(self, module: nn.Module, weight: Tensor) -> Tensor:
        return weight.unsqueeze(-3)

    def unfold(self, module: nn.Module, block: Tensor) -> Tensor:
        return block.squeeze(-3)


class MultiheadAttentionRule(CompositeRule):
    """Splits ``nn.MultiheadAttention`` into ``in_proj`` (q, k, v) and ``out_proj``."""

    def __init__(self) -> None:
        self._in, self._out = _InProjection(), _OutProjection()

    def layers(self, module: nn.Module) -> dict[str, Rule]:
        return {"in_proj": self._in, "out_proj": self._out}

    def unsupported(self, module: nn.Module) -> str | None:
        attention = _attention(module)
        if attention.dropout > 0:
            return "MultiheadAttention with dropout draws a mask that cannot be recomputed; set its dropout to 0"
        if not attention._qkv_same_embed_dim or attention.bias_k is not None or attention.add_zero_attn:
            return "MultiheadAttention with kdim, vdim, add_bias_kv or add_zero_attn has no rule"
        return None

    def split(self, call: LayerCapture) -> list[LayerCapture]:
        attention = _attention(call.module)
        arguments = dict(zip(_ARGUMENTS, call.inputs, strict=False)) | dict(call.extras)
        grad = call.output_grad if attention.batch_first else call.output_grad.transpose(0, 1)
        if grad.dim() != 3:
            raise CaptureError(f"{call.layer}: attention without an example axis (input of 2 dimensions) has no rule.")
        streams = [_batch_first(attention, arguments[name]).to(grad.dtype) for name in ("query", "key", "value")]
        projected, context = _attend(attention, streams, _mask(arguments, attention.num_heads, grad))
        weight = attention.out_proj.weight.detach().to(grad.dtype)
        stream_grads = torch.autograd.grad(context, projected, grad @ weight)
        inputs = with_bias_row(_stack_rows(streams), attention.in_proj_bias is not None)
        contexts = with_bias_row(_stack_rows([context.detach()]), attention.out_proj.bias is not None)
        base = replace(call, batch_axis=0, extras={})
        return [
            replace(base, layer=f"{call.layer}.{name}", rule=rule, inputs=(rows,), output_grad=_stack_rows(grads))
            for name, rule, rows, grads in (
                ("in_proj", self._in, inputs, stream_grads),
                ("out_proj", self._out, contexts, [grad]),
            )
        ]


def _attention(module: nn.Module) -> Any:
    return cast(Any, module)


def _width(module: nn.Module) -> int:
    return int(_attention(module).embed_dim)


def _batch_first(attention: Any, stream: Tensor) -> Tensor:
    return (stream if attention.batch_first else stream.transpose(0, 1)).detach()


def _attend(attention: Any, streams: list[Tensor], mask: Tensor | None) -> tuple[list[Tensor], Tensor]:
    """Project the streams, attend, and return the projections as graph leaves with the context ``[B, L, E]``."""
    dtype = streams[0].dtype
    weights = attention.in_proj_weight.detach().to(dtype).chunk(3)
    biases = [None] * 3 if attention.in_proj_bias is None else attention.in_proj_bias.detach().to(dtype).chunk(3)
    with torch.enable_grad():
        projected = [
            F.linear(stream, weight, bias).requires_grad_()
            for stream, weight, bias in zip(streams, weights, biases, strict=True)
        ]
        q, k, v = (p.unflatten(-1, (attention.num_heads, -1)).transpose(1, 2) for p in projected)
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return projected, context.transpose(1, 2).flatten(2)


def _mask(arguments: Mapping[str, Any], heads: int, grad: Tensor) -> Tensor | None:
    """Join the attention mask and the key padding mask into one additive mask ``[B or 1, H or 1, L or 1, S]``."""
    mask, padding = arguments.get("attn_mask"), arguments.get("key_padding_mask")
    joined: Tensor | None = None
    if mask is not None:
        mask = _additive(mask, grad.dtype)
        joined = mask[None, None] if mask.dim() == 2 else mask.unflatten(0, (-1, heads))
    if padding is not None:
        padding = _additive(padding, grad.dtype)[:, None, None, :]
        joined = padding if joined is None else joined + padding
    return joined


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -torch.inf)
    return mask.detach().to(dtype)


def _stack_rows(streams: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
    """``[B, L_s, E]`` each into ``[B, G, E, T]``; shorter streams (cross-attention) are padded with zeros."""
    longest = max(stream.shape[1] for stream in streams)
    return torch.stack([F.pad(s, (0, 0, 0, longest - s.shape[1])) for s in streams], 1).mT


register(nn.MultiheadAttention, MultiheadAttentionRule())
