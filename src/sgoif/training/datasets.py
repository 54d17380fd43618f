"""Ids that stay with their examples, and a hold-out chosen by id, the same in every process and every run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.utils.data import Dataset, Subset

from sgoif.errors import SgoifError
from sgoif.ids import ids_of

__all__ = ["split", "with_ids"]


class _WithIds(Dataset[Any]):
    """A dataset whose items carry their id: as last entry, or under ``"id"``."""

    wraps_items = True  # see sgoif.ids.is_with_ids

    def __init__(self, dataset: Dataset[Any], ids: Sequence[Any] | None) -> None:
        size = len(dataset)  # type: ignore[arg-type]
        if ids is not None and len(ids) != size:
            raise SgoifError(f"got {len(ids)} ids for {size} examples.")
        self.dataset, self.has_given_ids = dataset, ids is not None
        self.ids = ids if ids is not None else ids_of(dataset)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Any:
        item = self.dataset[index]
        if isinstance(item, Mapping):
            return {**item, "id": self.ids[index]}
        return (*item, self.ids[index])


def with_ids(dataset: Dataset[Any], ids: Sequence[Any] | None = None) -> Dataset[Any]:
    """Make ``dataset[i]`` end with the example's id, or hold it under ``"id"`` where it is a dictionary.

    Without ``ids``, the id is the position in the original dataset, also after :func:`split`.

    Examples:
        >>> from torch.utils.data import TensorDataset
        >>> import torch
        >>> *_, ident = with_ids(TensorDataset(torch.zeros(3, 1), torch.arange(3)))[2]
        >>> ident
        2
    """
    return _WithIds(dataset, ids)


def split(
    dataset: Dataset[Any],
    *,
    fraction: float | None = None,
    groups: Sequence[Any] | Callable[[int], Any] | None = None,
    num_classes: int = 10,
    seed: int = 0,
) -> tuple[Dataset[Any], Dataset[Any]]:
    """Cut off a hold-out by hash of the id, whole groups together.

    Args:
        dataset: map-style.
        fraction: of the examples to hold out; by default ``min(10%, max(2%, 50 per class))``.
        groups: one group per example (a patient, a video, a product), or a function of the position; examples of one
            group stay on one side.
        num_classes: for the default fraction.
        seed: another seed gives another hold-out.

    Returns:
        The training set and the hold-out; ids of :func:`with_ids` are positions in ``dataset``.
    """
    size = len(dataset)  # type: ignore[arg-type]
    if size < 2:
        raise SgoifError(f"a dataset of {size} examples cannot be split.")
    share = min(0.10, max(0.02, 50 * num_classes / size)) if fraction is None else fraction
    if not 0 < share < 1:
        raise SgoifError(f"fraction must lie between 0 and 1, got {share}.")
    ids = ids_of(dataset)
    keys = [ids[i] if groups is None else groups(i) if callable(groups) else groups[i] for i in range(size)]
    held = [_unit_hash(key, seed) < share for key in keys]
    return (
        Subset(dataset, [i for i in range(size) if not held[i]]),
        Subset(dataset, [i for i in range(size) if held[i]]),
    )


def _unit_hash(key: object, seed: int) -> float:
    digest = hashlib.blake2b(f"{seed}/{key!r}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2.0**64
