"""Ids that stay with their examples, and a hold-out chosen by id, the same in every process and every run."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset, Subset

from sgoif.errors import SgoifError
from sgoif.influence import MIN_HELD_OUT
from sgoif.inputs.ids import ids_of
from sgoif.inputs.items import ID_KEY
from sgoif.inputs.labels import class_names_of, find_labels

__all__ = ["split", "warn_of_few", "with_ids"]

log = logging.getLogger(__name__)

_PER_CLASS = 20  # held-out examples of a class by default, where it has three times as many
_SHOWN = 10  # classes in a message


class _WithIds(Dataset[Any]):
    """A dataset whose items carry their id: as last entry, or under ``"id"``."""

    wraps_items = True  # see sgoif.inputs.ids.is_with_ids

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
            known = item.get(ID_KEY, self.ids[index])
            if not self.has_given_ids and known != self.ids[index]:
                raise SgoifError(
                    f"the item at position {self.ids[index]} has an id of its own, {known!r}, which the position would "
                    "replace. Leave sgoif.with_ids out where items have ids, or pass it the ids that shall count."
                )
            return {**item, ID_KEY: self.ids[index]}
        return (*item, self.ids[index])


def with_ids(dataset: Dataset[Any], ids: Sequence[Any] | None = None) -> Dataset[Any]:
    """Make ``dataset[i]`` end with the example's id, or hold it under ``"id"`` where it is a dictionary.

    Without ``ids``, the id is the position in the original dataset, also after :func:`split`. Items with an ``"id"`` of
    their own need no others, and are refused then.

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
    labels: Sequence[Any] | None = None,
    num_classes: int | None = None,
    seed: int = 0,
) -> tuple[Dataset[Any], Dataset[Any]]:
    """Cut off a hold-out by hash of the id, whole groups together, with examples of every class.

    An example is held out if its hash is below the fraction. A class that gets fewer than 20 so, or than a third of its
    examples where it is small, gets more of its own, the lowest hashes first; with ``fraction`` given, each class gets
    its share of that, one example at least. Classes with fewer than 5 held out are named in a warning.

    Labels are read where that needs no item: from tensors, ``targets``, a Hugging Face column. Pass them as ``labels``
    for other datasets, which are otherwise cut by hash alone, whatever that leaves of a rare class.

    Args:
        dataset: map-style.
        fraction: of the examples to hold out; by default ``min(10%, max(2%, 50 per class))``.
        groups: one group per example (a patient, a video, a product), or a function of the position; examples of one
            group stay on one side.
        labels: one per example, numbers or names.
        num_classes: for the default fraction, where labels are not known; 10 if left out.
        seed: another seed gives another hold-out.

    Returns:
        The training set and the hold-out; ids of :func:`with_ids` are positions in ``dataset``.
    """
    size = len(dataset)  # type: ignore[arg-type]
    if size < 2:
        raise SgoifError(f"a dataset of {size} examples cannot be split.")
    names, classes = _classes(dataset, labels, size)
    count = num_classes or len(names) or 10
    share = min(0.10, max(0.02, 50 * count / size)) if fraction is None else fraction
    if not 0 < share < 1:
        raise SgoifError(f"fraction must lie between 0 and 1, got {share}.")
    ids = ids_of(dataset)
    keys = [ids[i] if groups is None else groups(i) if callable(groups) else groups[i] for i in range(size)]
    hashes = np.array([_unit_hash(key, seed) for key in keys])
    held = hashes < share
    if classes is not None:
        units = np.arange(size) if groups is None else np.unique(hashes, return_inverse=True)[1]
        sizes = np.bincount(classes, minlength=len(names))
        wanted = np.minimum(_PER_CLASS, sizes // 3) if fraction is None else np.round(share * sizes)
        _top_up(held, hashes, units, classes, np.where(sizes > 1, np.maximum(wanted, 1), 0).astype(np.int64))
        warn_of_few(np.bincount(classes[held], minlength=len(names)), names)
    return Subset(dataset, np.flatnonzero(~held).tolist()), Subset(dataset, np.flatnonzero(held).tolist())


def _classes(dataset: Any, labels: Any, size: int) -> tuple[list[str], NDArray[np.int64] | None]:
    """Names of the classes, and which of them each example has; nothing where labels are not at hand."""
    known = None
    if labels is None:
        found = find_labels(dataset)
        known, labels = class_names_of(dataset), None if found is None else found.values
    if labels is None:
        return [], None
    values = np.asarray(labels)
    if len(values) != size:
        raise SgoifError(f"got {len(values)} labels for {size} examples.")
    if values.ndim != 1 or values.dtype.kind not in "biufUSO":
        return [], None  # tags, which have no classes
    if values.dtype.kind == "f" and not np.array_equal(values, values.round()):
        return [], None  # numbers to be predicted
    distinct, classes = np.unique(values.astype(str) if values.dtype.kind == "O" else values, return_inverse=True)
    is_named = known is not None and distinct.dtype.kind in "iu" and distinct[0] >= 0 and distinct[-1] < len(known)
    names = [known[int(label)] if known is not None and is_named else str(label) for label in distinct]
    return names, np.asarray(classes, np.int64)


def _top_up(
    held: NDArray[np.bool_],
    hashes: NDArray[np.float64],
    units: NDArray[np.int64],
    classes: NDArray[np.int64],
    wanted: NDArray[np.int64],
) -> None:
    """Hold out more of classes that have too few, in place: whole units, lowest hashes first, never most of a class."""
    sizes = np.bincount(classes, minlength=len(wanted))
    now = np.bincount(classes[held], minlength=len(wanted))
    order = np.lexsort((hashes, classes))
    starts = np.concatenate([[0], np.cumsum(sizes)])
    by_unit = np.argsort(units, kind="stable")
    first = np.searchsorted(units[by_unit], np.arange(int(units.max()) + 2))
    for c in np.flatnonzero(now < wanted):
        for position in order[starts[c] : starts[c + 1]]:
            if now[c] >= wanted[c]:
                break
            if held[position]:
                continue
            members = by_unit[first[units[position]] : first[units[position] + 1]]
            more = np.unique(classes[members], return_counts=True)
            if np.any(2 * (now[more[0]] + more[1]) > np.maximum(sizes[more[0]], 2)):
                continue  # a group that is most of a class is worth more to the training
            held[members] = True
            now[more[0]] += more[1]


def warn_of_few(
    counts: NDArray[np.int64], names: Sequence[str], *, present: NDArray[np.bool_] | None = None, quiet: bool = False
) -> dict[str, Any]:
    """Log which classes have too few held-out examples to judge their labels by.

    Args:
        counts: held-out examples of each class, ``[C]``.
        names: of the classes; numbers where there are none.
        present: classes that occur, ``[C]``, where that is known.
        quiet: log nothing, as where another process does.

    Returns:
        The same for a run's information; nothing where there is no such class.
    """
    is_few = counts < MIN_HELD_OUT
    few = np.flatnonzero(is_few if present is None else is_few & present).tolist()
    if not few:
        return {}
    shown = ", ".join(f"{names[c] if c < len(names) else c} ({counts[c]})" for c in few[:_SHOWN])
    more = f" and {len(few) - _SHOWN:,} more" if len(few) > _SHOWN else ""
    text = (
        f"{len(few):,} of {len(counts):,} classes have fewer than {MIN_HELD_OUT} held-out examples: {shown}{more}. "
        "Their labels are not judged, and they are never suggested; add examples, or merge these classes."
    )
    if not quiet:
        log.warning("%s", text)
    return {"warnings": {"few_held_out": text}}


def _unit_hash(key: object, seed: int) -> float:
    digest = hashlib.blake2b(f"{seed}/{key!r}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2.0**64
