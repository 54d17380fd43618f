"""Contractions of per-example gradients given in matrix form, each by the cheapest route its shape allows.

With rows ``a_i [G, I, T]`` and ``b_i [G, O, T]`` the gradient of example i is ``g_i = b_i a_iᵀ`` (per group). Nothing
here builds ``g_i`` unless that is the cheaper way: at one position (``T = 1``) it is rank one, so norms and inner
products need only ``a`` and ``b``; at many positions, several directions cost less after building ``g_i`` once. What
must be built is built for a slice of the batch at a time, within :data:`CHUNK_BYTES`.

Low-precision rows are widened to float32 first; float64 stays float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sgoif.records import GradientRows

__all__ = [
    "CHUNK_BYTES",
    "combine",
    "dots",
    "dots_and_norm2",
    "inner",
    "materialise",
    "norm2",
    "pool_positions",
    "widen",
]

CHUNK_BYTES = 64 * 2**20  # large enough for efficient matrix products, small beside any activation memory


def widen(values: Tensor) -> Tensor:
    """Return ``values`` in at least float32, the narrowest type that sums are kept in."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def inner(scratch: Tensor, values: Tensor) -> Tensor:
    """Inner product of each example's ``[G, O, T]`` values, ``[B, G, O, T] × 2 -> [B]``, in at least float32.

    Overwrites ``scratch``, which saves the allocation of a tensor as large as an activation.

    The axis that lies innermost in memory is summed first, in the values' own type (torch accumulates a reduction in
    float32 and rounds once), the rest in float32. That reads low-precision activations without a float32 copy of
    them: on a CPU, 5 ms instead of 26 ms for ``128×64×32×32``, at an error of 0.3% of the result's norm, the size of
    bf16's rounding.
    """
    product = scratch.mul_(values)
    strides = [product.stride(d) if product.shape[d] > 1 else 2**62 for d in (1, 2, 3)]
    first = 1 + strides.index(min(strides))
    return product.sum(first).sum((1, 2), dtype=widen(product[:0]).dtype)


def materialise(rows: GradientRows, scale: float | Tensor = 1.0) -> Tensor:
    """Build every per-example gradient times ``scale``, ``[B, G, O, I]``. Memory grows with ``B·G·O·I``.

    The scale is applied where it touches the fewest numbers: a pass over the result can cost as much as building it.
    """
    a, b = widen(rows.inputs), widen(rows.output_grads)
    if isinstance(scale, float) and scale == 1.0:
        return b @ a.mT
    return (b * scale) @ a.mT if a.shape[3] < a.shape[2] else (b @ a.mT).mul_(scale)


def dots(rows: GradientRows, directions: Tensor) -> Tensor:
    """Inner products ``⟨φ_k, g_i⟩`` of every example with K directions.

    Args:
        rows: the layer's rows.
        directions: ``[K, G, O, I]``.

    Returns:
        ``[B, K]``. Cost ``B·K·G·O·I`` at one position; at ``T > 1`` positions ``min(K·T, T + K)·B·G·O·I``.
    """
    num_directions, batch = directions.shape[0], rows.num_examples
    if rows.num_positions == 1:
        return _dots_rank_one(widen(rows.inputs)[..., 0], widen(rows.output_grads)[..., 0], directions)
    if num_directions == 1:
        through = directions[0].to(widen(rows.inputs).dtype) @ widen(rows.inputs)  # Φa, [B, G, O, T]
        return inner(through, widen(rows.output_grads))[:, None]
    flat = directions.reshape(num_directions, -1)
    parts = [materialise(part).flatten(1) @ flat.mT.to(widen(part.inputs).dtype) for part in _slices(rows)]
    return torch.cat(parts) if parts else rows.inputs.new_zeros((batch, num_directions))


def dots_and_norm2(rows: GradientRows, directions: Tensor) -> tuple[Tensor, Tensor]:
    """:func:`dots` ``[B, K]`` and :func:`norm2` ``[B]`` at once: at many positions both are read off one ``g_i``."""
    if rows.num_positions == 1:
        return dots(rows, directions), norm2(rows)
    flat = directions.reshape(directions.shape[0], -1)
    found, sizes = [], []
    for part in _slices(rows):
        built = materialise(part).flatten(1)
        found.append(built @ flat.mT.to(built.dtype))
        sizes.append(built.square().sum(1))
    return torch.cat(found), torch.cat(sizes)


def _dots_rank_one(a: Tensor, b: Tensor, directions: Tensor) -> Tensor:
    """``b_iᵀ Φ_k a_i`` with ``a [B, G, I]``, ``b [B, G, O]``; the smaller of ``Φa`` and ``Φᵀb`` is the intermediate."""
    directions = directions.to(a.dtype)
    if directions.shape[1] == 1:
        return _dots_one_group(a[:, 0], b[:, 0], directions[:, 0])
    if b.shape[2] <= a.shape[2]:
        half = torch.einsum("kgoi,bgi->bkgo", directions, a)
        return torch.einsum("bkgo,bgo->bk", half, b)
    half = torch.einsum("kgoi,bgo->bkgi", directions, b)
    return torch.einsum("bkgi,bgi->bk", half, a)


def _dots_one_group(a: Tensor, b: Tensor, directions: Tensor) -> Tensor:
    """The same for ``a [B, I]``, ``b [B, O]``, ``Φ [K, O, I]``: one large matrix product and one small one."""
    count, outputs, inputs = directions.shape
    if outputs <= inputs:
        half = (a @ directions.reshape(count * outputs, inputs).mT).view(-1, count, outputs)
        return torch.bmm(half, b[:, :, None])[:, :, 0]
    half = (b @ directions.transpose(0, 1).reshape(outputs, count * inputs)).view(-1, count, inputs)
    return torch.bmm(half, a[:, :, None])[:, :, 0]


def pool_positions(rows: GradientRows) -> tuple[Tensor, Tensor]:
    """Features ``a [B, I]`` and logit gradients ``b [B, O]`` of a head, with ``g_i = b_i a_iᵀ``.

    Exact at one position. A convolutional head is averaged over its positions, so that all of them receive the same
    gradient: their mean input and summed gradient are then exact too.
    """
    a, b = widen(rows.inputs)[:, 0], widen(rows.output_grads)[:, 0]
    return (a[:, :, 0], b[:, :, 0]) if rows.num_positions == 1 else (a.mean(2), b.sum(2))


def norm2(rows: GradientRows) -> Tensor:
    """Squared norms ``|g_i|²``, ``[B]``: by ``|a|²|b|²`` at one position, else by position Grams or by building g."""
    if rows.num_positions == 1:
        a, b = widen(rows.inputs)[..., 0], widen(rows.output_grads)[..., 0]
        return (a.square().sum(2) * b.square().sum(2)).sum(1)
    outputs, inputs, positions = rows.output_grads.shape[2], rows.inputs.shape[2], rows.num_positions
    by_gram = positions * (outputs + inputs) < outputs * inputs  # both sides divided by B·G·T
    parts = [_norm2_by_gram(part) if by_gram else materialise(part).square().sum((1, 2, 3)) for part in _slices(rows)]
    return torch.cat(parts) if parts else widen(rows.inputs).new_zeros(0)


def _norm2_by_gram(rows: GradientRows) -> Tensor:
    a, b = widen(rows.inputs), widen(rows.output_grads)
    return ((a.mT @ a) * (b.mT @ b)).sum((1, 2, 3))


def combine(rows: GradientRows, weights: Tensor) -> Tensor:
    """Weighted sums of per-example gradients, ``Σ_i w_ik g_i``, without building any ``g_i``.

    Args:
        rows: the layer's rows.
        weights: ``[B, K]``, for instance one column per anchor with ``1/m`` at its examples.

    Returns:
        ``[K, G, O, I]``.
    """
    a, b = widen(rows.inputs), widen(rows.output_grads)
    weights = weights.to(a.dtype)
    inputs = a.permute(1, 0, 3, 2).flatten(1, 2)  # [G, B·T, I]
    columns = []
    for weight in weights.unbind(1):  # one matrix product per anchor: no [B, K, O, T] intermediate
        outputs = (b * weight[:, None, None, None]).permute(1, 2, 0, 3).flatten(2)  # [G, O, B·T]
        columns.append(outputs @ inputs)
    shape = (0, a.shape[1], b.shape[2], a.shape[2])
    return torch.stack(columns) if columns else a.new_zeros(shape)


def _slices(rows: GradientRows) -> list[GradientRows]:
    """Cut the batch so that one slice's gradients or Grams stay within :data:`CHUNK_BYTES`."""
    outputs, inputs, positions = rows.output_grads.shape[2], rows.inputs.shape[2], rows.num_positions
    per_example = 8 * rows.inputs.shape[1] * max(outputs * inputs, min(positions * positions, outputs * inputs))
    size = max(1, CHUNK_BYTES // max(per_example, 1))
    batch = rows.num_examples
    return [
        GradientRows(rows.layer, rows.inputs[start : start + size], rows.output_grads[start : start + size])
        for start in range(0, batch, size)
    ]
