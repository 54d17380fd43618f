"""One line to train on reviewed data: the same dataset without what was dropped and with the new labels.

Nothing is copied. Examples that people were unsure about, that show several classes, or that nobody looked at stay as
they are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset, IterableDataset, Subset

from sgoif.errors import SgoifError
from sgoif.review.changes import Change, Changes, need_reviewed, new_label, read_changes
from sgoif.review.columns import clean_columns
from sgoif.review.frames import clean_frame
from sgoif.review.streams import CleanedStream

__all__ = ["CleanedDataset", "cleaned"]

_PROBED = 1000  # ids of a dataset that are looked for in the manifest where it changes none of its examples


def cleaned(dataset: Any, manifest: str | os.PathLike[str], *, label: str | None = None) -> Any:
    """Give a dataset as people decided it should be.

    Args:
        dataset: map-style, of ``(input, label)`` or ``(input, label, id)``; a Hugging Face ``Dataset``; a pandas
            ``DataFrame``; or an iterable of dictionaries with ``__key__`` and ``cls``, such as a WebDataset. Ids
            are those of ``sgoif.with_ids``: the dataset's own, else positions in the dataset that everything was cut
            from; for a folder of pictures relative paths, if the manifest has these.
        manifest: the file that ``sgoif apply`` wrote.
        label: name of the label's column or key; found for a Hugging Face dataset or a frame, ``cls`` for an iterable.

    Returns:
        A dataset of the same kind. Dropped examples are gone and relabelled ones have their new label, of the old
        one's type. Where an example shows several classes, its given label stays.

    Raises:
        SgoifError: No id of the dataset is in the manifest; or an example's label is not the one that was reviewed.
            Labels are compared here where the dataset lists them, else when the example is read.
    """
    changes = read_changes(manifest)
    if hasattr(dataset, "iloc") and hasattr(dataset, "columns"):
        return clean_frame(dataset, changes, label)
    if hasattr(dataset, "select") and hasattr(dataset, "features"):
        return clean_columns(dataset, changes, label)
    if isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        return CleanedStream(dataset, changes, label or "cls")
    return _clean_items(dataset, changes)


class CleanedDataset(Dataset[Any]):
    """A map-style dataset without some of its examples, and with other labels for some.

    Args:
        dataset: the whole dataset.
        kept: positions of the examples that stay.
        relabelled: what happens to the examples at some positions.
        ids: of all examples.
        path: of the manifest, for messages.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        kept: NDArray[np.int64],
        relabelled: Mapping[int, Change],
        ids: Sequence[Any],
        path: str,
    ) -> None:
        self.dataset, self.kept, self.path = dataset, kept, path
        self.relabelled = dict(relabelled)
        self.ids: Sequence[Any] = _Picked(ids, kept)

    def __len__(self) -> int:
        return len(self.kept)

    def __getitem__(self, index: int) -> Any:
        position = int(self.kept[index])
        item = self.dataset[position]
        if position not in self.relabelled:
            return item
        if not isinstance(item, tuple | list) or len(item) < 2:
            raise SgoifError(f"items must be (input, label) or (input, label, id), got {type(item).__name__}.")
        changed = new_label(self.relabelled[position], item[1], self.ids[index], self.path)
        return type(item)((item[0], changed, *item[2:]))

    def __getattr__(self, name: str) -> Any:
        """Labels of all examples that stay, under the name that the dataset itself has for them."""
        if name not in ("targets", "labels"):
            raise AttributeError(name)
        known = _listed(self.dataset, name)
        if known is None:
            raise AttributeError(name)
        changed = self.relabelled
        return [changed[i].label if i in changed else int(known[i]) for i in self.kept.tolist()]


class _Picked(Sequence[Any]):
    """Some items of a sequence, by position."""

    def __init__(self, items: Sequence[Any], positions: NDArray[np.int64]) -> None:
        self.items, self.positions = items, positions

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self.items[i] for i in self.positions[index].tolist()]
        return self.items[int(self.positions[index])]


def _clean_items(dataset: Any, changes: Changes) -> CleanedDataset:
    ids = _known_ids(dataset, changes)
    found = _positions_of(ids, changes)
    _check_labels(dataset, ids, found, changes.path)
    gone = [position for position, change in found.items() if change.label is None]
    kept = np.delete(np.arange(len(dataset)), np.array(gone, dtype=np.int64))
    relabelled = {position: change for position, change in found.items() if change.label is not None}
    return CleanedDataset(dataset, kept, relabelled, ids, changes.path)


def _known_ids(dataset: Any, changes: Changes) -> Sequence[Any]:
    """The ids by which the manifest knows this dataset."""
    tried = []
    for ids in _candidates(dataset):
        tried.append(ids)
        if changes.know_any([ids[i] for i in range(0, len(ids), max(1, len(ids) // _PROBED))]):
            return ids
        if _positions_of(ids, changes):
            return ids
    first = ", ".join(repr(ids[0]) for ids in tried if len(ids)) or "none"
    raise SgoifError(
        f"no id of this dataset is in '{changes.path}': the dataset's look like {first}, the manifest's like "
        f"{changes.first_id()!r}. Give it the ids of the run with sgoif.with_ids(dataset, ids)."
    )


def _candidates(dataset: Any) -> Iterator[Sequence[Any]]:
    """Ids that a dataset may go by: its own; or positions in the uncut dataset, or paths in its folder."""
    own = getattr(dataset, "ids", None)
    if own is not None:
        yield own
    elif isinstance(dataset, Subset):
        for inner in _candidates(dataset.dataset):
            yield _Picked(inner, np.asarray(dataset.indices, dtype=np.int64))
    elif len(dataset) and isinstance(dataset[0], tuple | list) and len(dataset[0]) > 2:
        yield [dataset[i][2] for i in range(len(dataset))]  # nobody lists them, so every example is read once
    else:
        yield range(len(dataset))
        if hasattr(dataset, "samples") and hasattr(dataset, "root"):  # torchvision's folders
            yield [PurePath(os.path.relpath(path, dataset.root)).as_posix() for path, *_ in dataset.samples]


def _positions_of(ids: Sequence[Any], changes: Changes) -> dict[int, Change]:
    if isinstance(ids, range):  # no need to look at every example
        known = ((int(id), change) for id, change in changes.by_id.items() if id.isascii() and id.isdigit())
        return {position: change for position, change in known if position in ids}
    found = ((position, changes.get(id)) for position, id in enumerate(ids))
    return {position: change for position, change in found if change is not None}


def _check_labels(dataset: Any, ids: Sequence[Any], found: Mapping[int, Change], path: str) -> None:
    listed = [labels for labels in (_listed(dataset, name) for name in ("targets", "labels")) if labels is not None]
    for position, change in found.items() if listed else ():
        need_reviewed(change, listed[0][position], ids[position], path)


def _listed(dataset: Any, name: str) -> Sequence[Any] | None:
    """Labels of all examples, where a dataset lists them."""
    if isinstance(dataset, Subset):
        inner = _listed(dataset.dataset, name)
        return None if inner is None else _Picked(inner, np.asarray(dataset.indices, dtype=np.int64))
    known = getattr(dataset, name, None)
    if known is None and hasattr(dataset, "dataset"):  # with_ids
        return _listed(dataset.dataset, name)
    return known if known is not None and hasattr(known, "__len__") and len(known) == len(dataset) else None
