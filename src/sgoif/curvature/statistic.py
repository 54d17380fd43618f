"""What one batch says about curvature, in a form that processes can combine before anyone absorbs it.

A statistic divides by the examples that *it* saw and says how many they were. Combining the statistics of two halves
gives the statistic of the whole, so curvature always divides by the global count, whichever process saw an example.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sgoif.errors import CurvatureError
from sgoif.records import GradientRows

__all__ = ["Reduction", "Statistic", "gradient_chunks", "measure_second_moments", "reduce_statistics"]

Reduction = Literal["mean", "concat"]
"""How a tensor combines across processes.

``mean``: average, weighted by the count of examples. ``concat``: side by side along the last axis.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Statistic:
    """One tensor measured on one batch, with the number of examples behind it.

    >>> Statistic(torch.ones(2), count=4, reduction="mean").count
    4
    """

    tensor: Tensor
    count: int | Tensor  # examples, a 0-d tensor where processes have summed it; at 0 the tensor is ignored
    reduction: Reduction
    is_symmetric: bool = False  # a matrix that is its own transpose: half of it needs sending


def reduce_statistics(parts: Sequence[Mapping[str, Statistic]]) -> dict[str, Statistic]:
    """Combine the statistics of disjoint batches into those of their union.

    This is what collectives must do; it serves one process with several micro-batches, and tests.

    Raises:
        CurvatureError: there are no parts, or they disagree about a statistic's reduction.

    >>> halves = [{"a": Statistic(torch.tensor(1.0), 1, "mean")}, {"a": Statistic(torch.tensor(4.0), 2, "mean")}]
    >>> reduce_statistics(halves)["a"].tensor
    tensor(3.)
    """
    if not parts:
        raise CurvatureError("reduce_statistics needs at least one part, got none; pass what `measure` returned.")
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: _reduce(name, [part[name] for part in parts if name in part]) for name in names}


def _reduce(name: str, statistics: list[Statistic]) -> Statistic:
    kinds = {statistic.reduction for statistic in statistics}
    if len(kinds) > 1:
        raise CurvatureError(
            f"{name!r} needs one reduction, got {sorted(kinds)}; measure it with one curvature backend."
        )
    if len(statistics) == 1:
        return statistics[0]
    kind = statistics[0].reduction
    total = sum((statistic.count for statistic in statistics[1:]), start=statistics[0].count)
    if kind == "concat":
        return Statistic(torch.cat([statistic.tensor for statistic in statistics], dim=-1), total, kind)
    summed = torch.stack([statistic.tensor * statistic.count for statistic in statistics]).sum(dim=0)
    return Statistic(summed / at_least_one(total), total, kind, statistics[0].is_symmetric)


def at_least_one(count: int | Tensor) -> int | Tensor:
    """Return the count as a divisor: an empty batch has nothing to divide."""
    return count.clamp_min(1) if isinstance(count, Tensor) else max(count, 1)


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
