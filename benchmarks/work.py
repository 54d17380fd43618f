"""Computation as three numbers (operations, bytes moved, operators launched), and what a device takes for each.

What runs is counted operator by operator. How long a count takes is the sum of its three parts at the device's speeds.
That is coarse: no overlap, no caches. It is meant for shares, where most of the error cancels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

__all__ = ["Speed", "Work", "count_work"]

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Work:
    """An amount of computation.

    >>> (2 * Work(flops=1.0) + Work(flops=1.0, launches=3.0)).flops
    3.0
    """

    flops: float = 0.0
    bytes: float = 0.0  # read and written
    launches: float = 0.0  # operators

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.bytes + other.bytes, self.launches + other.launches)

    def __rmul__(self, factor: float) -> Work:
        return Work(factor * self.flops, factor * self.bytes, factor * self.launches)


@dataclass(frozen=True, slots=True)
class Speed:
    """What a device does in a second."""

    flops: float
    bytes: float
    launches: float

    def seconds(self, work: Work) -> float:
        """How long some work takes, its parts one after another."""
        return work.flops / self.flops + work.bytes / self.bytes + work.launches / self.launches


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.work = Work()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func.is_view:
            return out
        rule = flop_registry.get(func._overloadpacket)
        flops = float(rule(*args, **kwargs, out_val=out)) if rule is not None else 0.0
        moved = sum(t.nbytes for t in tree_leaves((args, kwargs, out)) if isinstance(t, Tensor))
        self.work = self.work + Work(flops, float(moved), 1.0)
        return out


def count_work(run: Callable[[], Result]) -> tuple[Result, Work | None]:
    """Run something and count what it computes; None where it does not run under a count."""
    counter = _Counter()
    try:
        with counter:
            return run(), counter.work
    except Exception:  # compiled parts and custom operators need not bear it; a mistake in `run` shows itself again
        return run(), None
