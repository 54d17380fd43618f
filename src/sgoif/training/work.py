"""Computation as three numbers (operations, bytes moved, operators launched), and what a device takes for each.

A network's forward pass is counted while it runs, operator by operator. How long a count takes is the sum of its three
parts at the device's speeds, measured once in a few milliseconds. That is coarse: no overlap, no caches. It is meant
for shares, where most of the error cancels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from sgoif.distributed import is_sharded, keep_sharded
from sgoif.gradients import Layer, find_head, quiet_eval
from sgoif.gradients.head import check_output
from sgoif.training.clock import Clock

__all__ = ["Speed", "Work", "count_work", "find_head_and_work", "measure_speed"]

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


def find_head_and_work(
    model: nn.Module, run: Callable[[], Tensor], num_examples: int, name: str | None
) -> tuple[Layer, Work | None]:
    """Find the head, and count in the same pass what one example's forward pass computes; its launches are a batch's.

    Parameters are read whatever the number of examples, and are left out.
    """
    if is_sharded(*model.parameters()):  # collectives run inside, which a count need not bear
        with keep_sharded(model):
            return find_head(model, run, name=name), None
    counted: list[Work | None] = []

    def run_counted() -> Tensor:
        out, work = count_work(run)
        counted.append(work)
        return out

    found = find_head(model, run_counted, name=name)
    if not counted:  # the head was named, so nothing was run
        with quiet_eval(model), torch.no_grad():
            check_output(run_counted())
    work = counted[0]
    if work is None:
        return found, None
    moved = max(work.bytes - sum(parameter.nbytes for parameter in model.parameters()), 0.0)
    return found, Work(work.flops / num_examples, moved / num_examples, work.launches)


@lru_cache(maxsize=16)
def measure_speed(device: torch.device, dtype: torch.dtype = torch.float32) -> Speed:
    """Time a matrix product, a sum of large vectors and a chain of tiny operators; a few milliseconds, once."""
    clock = Clock(device)
    side = 256 if clock.is_exact else 2048
    like: dict[str, Any] = {"device": device, "dtype": dtype}
    square, large, tiny = torch.ones(side, side, **like), torch.ones(2**20, device=device), torch.ones(4, 4, **like)

    def chain() -> Tensor:
        value = tiny
        for _ in range(20):
            value = (value @ tiny).softmax(1) * 0.5 + tiny
        return value

    with torch.no_grad():
        return Speed(
            flops=2.0 * side**3 / _shortest(lambda: square @ square, clock),
            bytes=3.0 * large.nbytes / _shortest(lambda: large + large, clock),
            launches=80.0 / _shortest(chain, clock),
        )


def _shortest(run: Callable[[], Tensor], clock: Clock, repeats: int = 7) -> float:
    """The shortest time of several: what else the machine does only ever adds."""
    times = []
    for _ in range(repeats):
        clock.synchronise()
        begun = clock.now()
        run()
        clock.synchronise()
        times.append(clock.now() - begun)
    return max(min(times), 1e-9)
