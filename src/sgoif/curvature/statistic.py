"""What one batch says about curvature, in a form that processes can combine before anyone absorbs it.

A statistic divides by the examples that *it* saw and says how many they were. Combining the statistics of two halves
gives the statistic of the whole, so curvature always divides by the global count, whichever process saw an example.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sgoif.errors import CurvatureError

__all__ = ["Reduction", "Statistic", "reduce_statistics"]

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
    kind = statistics[0].reduction
    total = sum((statistic.count for statistic in statistics[1:]), start=statistics[0].count)
    if kind == "concat":
        return Statistic(torch.cat([statistic.tensor for statistic in statistics], dim=-1), total, kind)
    summed = torch.stack([statistic.tensor * statistic.count for statistic in statistics]).sum(dim=0)
    return Statistic(summed / at_least_one(total), total, kind, statistics[0].is_symmetric)


def at_least_one(count: int | Tensor) -> int | Tensor:
    """Return the count as a divisor: an empty batch has nothing to divide."""
    return count.clamp_min(1) if isinstance(count, Tensor) else max(count, 1)
