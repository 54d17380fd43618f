"""Per-example gradients written out, a bounded number at a time.

Only for statistics that need them entry by entry; most curvature factors come from inputs and output gradients
directly.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from sgoif.curvature.statistic import Statistic
from sgoif.records import GradientRows

__all__ = ["gradient_chunks", "measure_second_moments"]


def gradient_chunks(rows: GradientRows, dtype: torch.dtype, max_bytes: int) -> Iterator[Tensor]:
    """Yield per-example gradients ``[b, G, O, I]`` in ``dtype``, ``b`` as large as ``max_bytes`` allows, at least 1.

    ``g_i[g] = Σ_t b_i[g, :, t] a_i[g, :, t]ᵀ``, in ``O(B·P·T)`` time.
    """
    per_example = rows.output_grads[:1].numel() // max(rows.num_positions, 1) * rows.inputs.shape[2] * dtype.itemsize
    size = max(1, max_bytes // max(per_example, 1))
    for start in range(0, rows.num_examples, size):
        part = slice(start, start + size)
        yield rows.output_grads[part].to(dtype) @ rows.inputs[part].to(dtype).mT


def measure_second_moments(rows: GradientRows, dtype: torch.dtype, max_bytes: int) -> Statistic:
    """Measure the mean of ``g_i²`` over examples, elementwise, ``[G, O, I]``; zeros for no examples.

    With one position, ``g_i² = b_i² ⊗ a_i²`` and one small product does it: ``O(B·P)`` time, ``O(P)`` memory. With
    more, the square of a sum needs the sum: gradients are written out, ``max_bytes`` at a time.

    >>> rows = GradientRows("fc", inputs=torch.tensor([[[[2.0]]]]), output_grads=torch.tensor([[[[3.0]]]]))
    >>> measure_second_moments(rows, torch.float32, max_bytes=1024).tensor
    tensor([[[36.]]])
    """
    count = max(rows.num_examples, 1)
    if rows.num_positions == 1:
        a, b = rows.inputs.to(dtype)[..., 0].square(), rows.output_grads.to(dtype)[..., 0].square()
        return Statistic(torch.einsum("bgo,bgi->goi", b, a) / count, rows.num_examples, "mean")
    shape = (*rows.output_grads.shape[1:3], rows.inputs.shape[2])
    total = torch.zeros(shape, dtype=dtype, device=rows.inputs.device)
    for gradients in gradient_chunks(rows, dtype, max_bytes):
        total = total + gradients.square().sum(dim=0)
    return Statistic(total / count, rows.num_examples, "mean")
