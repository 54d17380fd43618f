"""The global random generators, left as found."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

__all__ = ["preserve_rng"]


@contextmanager
def preserve_rng(*devices: torch.device) -> Iterator[None]:
    """Restore the global generators of torch, numpy and Python on leaving: datasets may draw from any of them.

    Args:
        devices: whose generators are restored beside the CPU's; those without one of their own are passed over.
    """
    python_state, numpy_state, torch_state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    found = {device: getattr(torch, device.type) for device in devices if device.type in ("cuda", "xpu", "mps")}
    states = {device: _state(backend, device) for device, backend in found.items()}
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)
        for device, state in states.items():
            if device.type == "mps":
                found[device].set_rng_state(state)
            else:
                found[device].set_rng_state(state, device)


def _state(backend: object, device: torch.device) -> torch.Tensor:
    read = backend.get_rng_state  # type: ignore[attr-defined]
    return read() if device.type == "mps" else read(device)  # type: ignore[no-any-return]
