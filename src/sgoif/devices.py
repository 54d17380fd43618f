"""Copies between the host and a device that may run behind it."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["send"]


def send(value: Tensor, device: torch.device | str) -> Tensor:
    """Copy a tensor to a device without waiting for it; to the CPU, and to MPS, the copy is waited for.

    MPS may read the source after it was freed. Elsewhere ordinary memory is staged before this returns, and pinned
    memory must stay as it is until the device has read it.
    """
    return value.to(device, non_blocking=torch.device(device).type not in ("cpu", "mps"))
