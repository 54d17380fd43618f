"""Examples that are both trained on and held out, found where both sides are at hand."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import TensorDataset

from sgoif.errors import SgoifError
from sgoif.inputs.examples import Examples
from sgoif.inputs.ids import is_subset, is_with_ids

__all__ = ["count_copies", "find_overlap", "refuse_overlap"]

log = logging.getLogger(__name__)

_COLUMNS = 256  # of a row, by which equal rows are found
_SHOWN = 3  # ids in a message


def refuse_overlap(held: Examples, trained: Examples) -> None:
    """Raise if anchors are surely examples of the dataset, and warn if some have equal inputs.

    Raises:
        SgoifError: scores against examples that were trained on would call wrong labels right.
    """
    found = find_overlap(held, trained)
    if found is not None:
        raise SgoifError(
            f"{found}; anchors must be held-out examples that the model was not trained on. Cut them off before "
            "training: train_set, anchors = sgoif.split(dataset)."
        )
    copies = count_copies(held, trained)
    if copies:
        log.warning(
            "%d of %d anchors have the same input as an example of the dataset; what was trained on says little about "
            "labels, so leave such copies out of the anchors.",
            copies,
            len(held),
        )


def find_overlap(held: Examples, trained: Examples) -> str | None:
    """Say which examples are surely on both sides: those of one dataset, of the same tensors, or of equal ids."""
    (mine, my_rows), (theirs, their_rows) = _origin(held), _origin(trained)
    if isinstance(mine, Tensor) and isinstance(theirs, Tensor):
        shared = _count_shared(mine, my_rows, theirs, their_rows)
        if shared:
            return f"{shared:,} of {len(held):,} anchors are rows of the same tensor as the dataset"
    elif mine is theirs:
        shared = len(np.intersect1d(my_rows, their_rows))
        if shared:
            return f"{shared:,} of {len(held):,} anchors are examples of the dataset"
    names = held.given_ids
    others = None if names is None else trained.given_ids
    common = sorted(names & others, key=repr) if names is not None and others is not None else []
    if common:
        shown = ", ".join(repr(id) for id in common[:_SHOWN])
        return f"{len(common):,} of {len(held):,} anchors have ids of the dataset, such as {shown}"
    return None


def count_copies(held: Examples, trained: Examples) -> int:
    """How many anchors are equal, number by number, to a training example; 0 where either is not in memory."""
    (mine, my_rows), (theirs, their_rows) = _origin(held), _origin(trained)
    if not (isinstance(mine, Tensor) and isinstance(theirs, Tensor)):
        return 0
    if mine.dtype != theirs.dtype or mine.shape[1:] != theirs.shape[1:] or mine[0].numel() < 2:
        return 0
    return int(np.isin(_fingerprints(mine, my_rows), _fingerprints(theirs, their_rows)).sum())


def _origin(examples: Examples) -> tuple[Any, NDArray[np.int64]]:
    """What everything was cut from, and which of its rows these are."""
    source, rows = examples.dataset, np.arange(len(examples))
    while is_subset(source) or is_with_ids(source):
        rows = np.asarray(source.indices, np.int64)[rows] if is_subset(source) else rows
        source = source.dataset
    if type(source) is TensorDataset:
        source = source.tensors
    if isinstance(source, tuple | list) and len(source):
        source = source[0]
        if isinstance(source, np.ndarray) and all(stride > 0 for stride in source.strides):
            source = torch.from_numpy(source)
        return (source, rows) if isinstance(source, Tensor) and source.dim() else (examples.dataset, rows)
    return source, rows


def _count_shared(mine: Tensor, my_rows: NDArray[np.int64], theirs: Tensor, their_rows: NDArray[np.int64]) -> int:
    is_one = mine.untyped_storage().data_ptr() == theirs.untyped_storage().data_ptr()
    if is_one and mine.stride() == theirs.stride() and mine.dtype == theirs.dtype and mine.stride(0):
        step = mine.stride(0)
        if mine.storage_offset() % step == theirs.storage_offset() % step:
            my_rows, their_rows = my_rows + mine.storage_offset() // step, their_rows + theirs.storage_offset() // step
            return len(np.intersect1d(my_rows, their_rows))
    is_alike = mine.shape == theirs.shape and mine.dtype == theirs.dtype and len(my_rows) == len(their_rows)
    if is_alike and np.array_equal(my_rows, their_rows) and torch.equal(mine.cpu(), theirs.cpu()):
        return len(my_rows)
    return 0


def _fingerprints(values: Tensor, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
    """One number per row, equal for equal rows: a sum of its bytes with fixed odd weights, modulo 2⁶⁴."""
    flat = values.detach().flatten(1)
    columns = torch.linspace(0, flat.shape[1] - 1, min(_COLUMNS, flat.shape[1])).long().unique()
    found = []
    for part in torch.from_numpy(rows).split(65_536):
        block = flat[part.to(flat.device)][:, columns.to(flat.device)].contiguous().cpu()
        data = block.view(torch.uint8).numpy().astype(np.uint64)
        weights = np.random.default_rng(0).integers(0, 2**63, data.shape[1], np.int64).astype(np.uint64) * 2 + 1
        found.append(data @ weights)
    return np.concatenate(found)
