"""Images as users have them, read batch after batch: a tensor, a dataset, a loader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from sgoif.errors import SgoifError
from sgoif.inputs.examples import Examples
from sgoif.inputs.items import is_map_style, move_to, take_apart

__all__ = ["batches_of", "device_of", "moved"]


def batches_of(images: Any, batch_size: int) -> Iterator[tuple[Sequence[Any], Any]]:
    """Ids and inputs of each batch.

    Args:
        images: inputs alone, or whatever :class:`sgoif.inputs.Examples` reads; a ``DataLoader`` is gone through as it
            is. Labels are not looked at.
        batch_size: of what is no loader.
    """
    if isinstance(images, DataLoader):
        start = 0
        for batch in images:
            inputs = take_apart(batch).input
            count = len(next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs)
            yield range(start, start + count), inputs
            start += count
        return
    if not (is_map_style(images) or isinstance(images, Tensor | Mapping)):
        raise SgoifError(f"images must be a tensor, a dataset or a DataLoader, got {type(images).__name__}.")
    if not len(images):
        return
    examples = Examples(images, role="images")
    for start in range(0, len(examples), batch_size):
        positions = torch.arange(start, min(start + batch_size, len(examples)))
        yield [examples.ids[i] for i in positions.tolist()], examples.inputs(positions)


def moved(inputs: Any, device: torch.device) -> Any:
    """Inputs where the model is."""
    return move_to(inputs, device)


def device_of(model: nn.Module) -> torch.device:
    """Where the model is."""
    first = next(model.parameters(), None)
    return torch.device("cpu") if first is None else first.device
