"""Examples of a dataset: those asked about, found by id, and a sample of the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SgoifError
from sgoif.inputs.examples import Examples

__all__ = ["Chosen", "choose", "sample_of_others"]

_SHOWN = 10  # unknown ids in a message


class Chosen(NamedTuple):
    """Examples of a dataset."""

    ids: NDArray[Any]
    positions: NDArray[np.int64]  # ascending
    total: int  # examples of the dataset


def choose(dataset: Examples, ids: Sequence[Any]) -> Chosen:
    """Where the examples are; one look through the dataset's ids, and no table of them."""
    wanted = {item.item() if hasattr(item, "item") else item for item in ids}
    if not wanted:
        raise SgoifError("no ids were asked about.")
    known = dataset.ids
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


def sample_of_others(gone: NDArray[np.int64], total: int, most: int) -> NDArray[np.int64]:
    """Positions of up to ``most`` examples that stay, evenly spaced among them."""
    count = total - len(gone)
    ranks = np.linspace(0, count - 1, min(most, count)).round().astype(np.int64)
    passed = np.searchsorted(gone - np.arange(len(gone)), ranks, side="right")  # those that go and come before
    return np.asarray(ranks + passed, np.int64)
