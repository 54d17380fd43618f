"""Examples of a dataset: those asked about, found by id; a sample of the others; inputs and labels of either."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from sgoif.errors import SgoifError
from sgoif.ids import ids_of

__all__ = ["Chosen", "Source", "choose", "labelled", "sample_of_others", "size_of"]

Source = tuple[Tensor, Tensor] | Dataset[Any]

_SHOWN = 10  # unknown ids in a message


class Chosen(NamedTuple):
    """Examples of a dataset."""

    ids: NDArray[Any]
    positions: NDArray[np.int64]  # ascending
    total: int  # examples of the dataset


def choose(dataset: Source, ids: Sequence[Any]) -> Chosen:
    """Where the examples are; one look through the dataset's ids, and no table of them."""
    wanted = {item.item() if hasattr(item, "item") else item for item in ids}
    if not wanted:
        raise SgoifError("no ids were asked about.")
    known = _ids(dataset)
    if isinstance(known, range):
        pairs = [(known.index(item), item) for item in wanted if item in known]
    else:
        plain = (item.item() if hasattr(item, "item") else item for item in known)
        pairs = [(position, item) for position, item in enumerate(plain) if item in wanted]
    unknown = wanted - {item for _, item in pairs}
    if unknown:
        shown = ", ".join(repr(item) for item in sorted(unknown, key=repr)[:_SHOWN])
        more = f" and {len(unknown) - _SHOWN:,} more" if len(unknown) > _SHOWN else ""
        raise SgoifError(f"{len(unknown):,} of {len(wanted):,} ids are not in the dataset: {shown}{more}.")
    if len(pairs) == len(known):
        raise SgoifError("every example of the dataset was asked about; nothing would be left to train on.")
    pairs.sort()
    return Chosen(np.array([item for _, item in pairs]), np.array([position for position, _ in pairs]), len(known))


def _ids(dataset: Source) -> Sequence[Any]:
    if isinstance(dataset, tuple):
        return range(len(dataset[1]))
    source: Any = dataset
    if not hasattr(source, "ids") and len(source[0]) > 2:  # its items bring their own
        return [source[i][2] for i in range(len(source))]
    return ids_of(source)


def sample_of_others(gone: NDArray[np.int64], total: int, most: int) -> NDArray[np.int64]:
    """Positions of up to ``most`` examples that stay, evenly spaced among them."""
    count = total - len(gone)
    ranks = np.linspace(0, count - 1, min(most, count)).round().astype(np.int64)
    passed = np.searchsorted(gone - np.arange(len(gone)), ranks, side="right")  # those that go and come before
    return np.asarray(ranks + passed, np.int64)


def labelled(source: Source, positions: NDArray[np.int64]) -> tuple[Any, Tensor]:
    """Inputs and labels at some positions, collated."""
    if isinstance(source, tuple):
        return source[0][positions], source[1][positions].detach().cpu().long()
    items: Any = [source[int(i)] for i in positions]
    return default_collate([item[0] for item in items]), torch.tensor([int(item[1]) for item in items])


def size_of(source: Source) -> int:
    """How many examples there are."""
    return len(source[1]) if isinstance(source, tuple) else len(source)  # type: ignore[arg-type]
