"""The hold-out: examples that are never trained on, read by position, a fixed number at a time, class after class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from sgoif.errors import SgoifError
from sgoif.ids import ids_of

__all__ = ["HoldOut", "inputs_at"]


class HoldOut:
    """Held-out examples with their classes, visited in rounds so that every class comes up equally often.

    Args:
        source: a tuple ``(inputs, labels)`` of tensors, or a map-style dataset of ``(input, label)`` or
            ``(input, label, id)``. Without ids, those of :func:`sgoif.ids.ids_of`; of tensors, positions.
        num_classes: how many classes there are; found from the labels where None.
        seed: of the order inside each class.
        device: where the labels live and inputs are moved to.

    A dataset's labels are read once, here; its inputs only when their turn comes. An example that cannot be read is an
    error once, and left out from then on.
    """

    def __init__(
        self,
        source: tuple[Tensor, Tensor] | Dataset[Any],
        *,
        num_classes: int | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self._source, self.device = source, torch.device(device)
        labels, self.ids = _labels_and_ids(source)
        if not len(labels):
            raise SgoifError("the hold-out is empty; anchors need held-out examples of at least two classes.")
        found = int(labels.max()) + 1
        self.num_classes = found if num_classes is None else num_classes
        if found > self.num_classes or int(labels.min()) < 0:
            raise SgoifError(
                f"hold-out labels must lie in 0..{self.num_classes - 1}, but they range from {int(labels.min())} to "
                f"{found - 1}; pass num_classes=, or leave out examples without a label."
            )
        self.labels = labels.to(self.device)
        self.counts = torch.bincount(labels, minlength=self.num_classes)
        self._order = _interleaved(labels, self.num_classes, torch.Generator().manual_seed(seed))
        self.position = 0

    def __len__(self) -> int:
        return len(self.ids)

    def next_positions(self, count: int) -> Tensor:
        """Positions of the next ``count`` examples (fewer when the hold-out is smaller), wrapping around."""
        size = len(self._order)
        count = min(count, size)
        picked = self._order[(self.position + torch.arange(count)) % size]
        self.position = (self.position + count) % size
        return picked

    def inputs(self, positions: Tensor) -> Any:
        """The inputs at these positions, collated and on the device."""
        return inputs_at(self._source, positions, self.device, self._read)

    def _read(self, position: int) -> Any:
        try:
            return self._source[position][0]
        except Exception:
            left = self._order[self._order != position]
            self._order = left if len(left) else self._order
            raise


def inputs_at(
    source: tuple[Tensor, Any] | Dataset[Any],
    positions: Tensor,
    device: torch.device,
    read: Callable[[int], Any] | None = None,
) -> Any:
    """The inputs of a hold-out at these positions, collated and on the device; ``read`` gives one of a dataset."""
    if isinstance(source, tuple):
        return source[0][positions].to(device)
    read = read or (lambda position: source[position][0])
    return _to_device(default_collate([read(int(i)) for i in positions]), device)


def _labels_and_ids(source: tuple[Tensor, Tensor] | Dataset[Any]) -> tuple[Tensor, Sequence[Any]]:
    if isinstance(source, tuple):
        inputs, labels = source
        if len(inputs) != len(labels):
            raise SgoifError(f"the hold-out has {len(inputs)} inputs but {len(labels)} labels.")
        return labels.detach().cpu().long(), range(len(labels))
    ids, known = ids_of(source), getattr(source, "targets", None)
    if known is not None and len(known) == len(ids) and not hasattr(source, "ids"):
        return torch.as_tensor(known).long(), ids
    items = [source[i][1:] for i in range(len(ids))]
    labels = torch.tensor([int(item[0]) for item in items])
    return labels, [item[1] if len(item) > 1 else id for item, id in zip(items, ids, strict=True)]


def _interleaved(labels: Tensor, num_classes: int, generator: torch.Generator) -> Tensor:
    """Order the positions so that classes alternate for as long as each has examples left."""
    rank = torch.empty(len(labels), dtype=torch.float64)
    for c in range(num_classes):
        members = torch.nonzero(labels == c).flatten()
        shuffled = members[torch.randperm(len(members), generator=generator)]
        # spread each class evenly over the whole order, so that a rare class does not come up in the first draw only
        offset = torch.rand((), generator=generator, dtype=torch.float64)
        rank[shuffled] = (torch.arange(len(members), dtype=torch.float64) + offset) / max(len(members), 1)
    return rank.argsort()


def _to_device(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: _to_device(item, device) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_to_device(item, device) for item in value)
    return value
