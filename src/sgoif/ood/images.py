"""Images as users have them, read batch after batch: a tensor, a dataset, a loader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, default_collate

from sgoif.errors import SgoifError
from sgoif.ids import ids_of

__all__ = ["batches_of", "device_of", "moved"]


def batches_of(images: Any, batch_size: int) -> Iterator[tuple[Sequence[Any], Any]]:
    """Ids and inputs of each batch.

    Args:
        images: a tensor ``[N, …]``, a tuple ``(inputs, labels)`` of tensors, a map-style dataset of inputs or of tuples
            that begin with one, or a ``DataLoader`` of either. Labels are not looked at.
        batch_size: of what is no loader.
    """
    if isinstance(images, tuple) and images and isinstance(images[0], Tensor):
        images = images[0]
    if isinstance(images, Tensor):
        for start in range(0, len(images), batch_size):
            part = images[start : start + batch_size]
            yield range(start, start + len(part)), part
    elif isinstance(images, DataLoader):
        start = 0
        for batch in images:
            inputs = _input_of(batch)
            yield range(start, start + len(inputs)), inputs
            start += len(inputs)
    elif hasattr(images, "__getitem__") and hasattr(images, "__len__"):
        ids = ids_of(images)
        for start in range(0, len(images), batch_size):
            positions = range(start, min(start + batch_size, len(images)))
            yield [ids[i] for i in positions], default_collate([_input_of(images[i]) for i in positions])
    else:
        raise SgoifError(f"images must be a tensor, a dataset or a DataLoader, got {type(images).__name__}.")


def moved(inputs: Any, device: torch.device) -> Any:
    """Inputs where the model is."""
    return inputs.to(device) if isinstance(inputs, Tensor) else inputs


def device_of(model: nn.Module) -> torch.device:
    """Where the model is."""
    first = next(model.parameters(), None)
    return torch.device("cpu") if first is None else first.device


def _input_of(item: Any) -> Any:
    return item[0] if isinstance(item, tuple | list) else item
