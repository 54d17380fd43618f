"""Random generators, left as found: the global ones, and those that a dataset keeps for itself."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["find_generators", "preserve_rng"]

_MOST = 1000  # objects that are looked through for generators

_Generators = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


@contextmanager
def preserve_rng(*devices: torch.device, own: Sequence[Any] = ()) -> Iterator[None]:
    """Restore the global generators of torch, numpy and Python on leaving: datasets may draw from any of them.

    Args:
        devices: whose generators are restored beside the CPU's; those without one of their own are passed over.
        own: further generators, from :func:`find_generators`.
    """
    restore = [_snapshot(generator) for generator in own]
    python_state, numpy_state, torch_state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    restore += [_of_device(device) for device in devices if device.type in ("cuda", "xpu", "mps")]
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)
        for put_back in restore:
            put_back()


def _of_device(device: torch.device) -> Callable[[], object]:
    backend, where = getattr(torch, device.type), () if device.type == "mps" else (device,)
    state = backend.get_rng_state(*where)
    return lambda: backend.set_rng_state(state, *where)


def _snapshot(generator: Any) -> Callable[[], object]:
    if isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        state = bits.state
        return lambda: setattr(bits, "state", state)
    if isinstance(generator, random.Random):
        python_state = generator.getstate()
        return lambda: generator.setstate(python_state)
    other_state = generator.get_state()
    return lambda: generator.set_state(other_state)


def find_generators(*objects: Any) -> list[Any]:
    """Generators among the attributes of some objects and of what these hold: a dataset's own, its transforms'.

    Looks into lists, tuples, dictionaries and objects with attributes, breadth first, through a thousand at most.
    """
    queue, found = list(objects), []
    seen: set[int] = set()
    while queue and len(seen) < _MOST:
        item = queue.pop(0)
        if id(item) in seen or isinstance(item, str | bytes | int | float | Tensor | np.ndarray | type | None):
            continue
        seen.add(id(item))
        if isinstance(item, _Generators):
            found += [] if isinstance(item, random.SystemRandom) else [item]  # which has no state
        elif isinstance(item, Mapping):
            queue += _few(item.values())
        elif isinstance(item, list | tuple):
            queue += _few(item)
        else:
            queue += _few(getattr(item, "__dict__", {}).values())
    return found


def _few(values: Any) -> list[Any]:
    """The first values of a container: one that holds examples is long, and has no generators in it."""
    return [value for value, _ in zip(values, range(32))]
