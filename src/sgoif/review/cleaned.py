"""One line to train on reviewed data: the same dataset without what was dropped, with the new labels or completions.

Nothing is copied. Examples that people were unsure about, that show several classes, or that nobody looked at stay as
they are.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset, IterableDataset, Subset

from sgoif.errors import SgoifError
from sgoif.inputs.items import ID_KEY
from sgoif.review.changes import Change, Changes, need_reviewed, new_label, read_changes
from sgoif.review.edits import edit_column, edit_item, need_editable, need_same_text

__all__ = ["CleanedDataset", "CleanedStream", "cleaned"]

_PROBED = 1000  # ids of a dataset that are looked for in the manifest where it changes none of its examples
_USUAL = ("label", "labels", "target", "class")  # names of the label's column in a table


def cleaned(dataset: Any, manifest: str | os.PathLike[str], *, label: str | None = None) -> Any:
    """Give a dataset as people decided it should be.

    Args:
        dataset: map-style, of ``(input, label)`` or ``(input, label, id)``; a Hugging Face ``Dataset``; a pandas
            ``DataFrame``; or an iterable of dictionaries with ``__key__`` and ``cls``, such as a WebDataset. Ids
            are those of ``sgoif.with_ids``: the dataset's own, else positions in the dataset that everything was cut
            from; for a folder of pictures relative paths, if the manifest has these. Items for a language model need
            no label.
        manifest: the file that ``sgoif apply`` wrote.
        label: name of the label's column or key; found for a Hugging Face dataset or a frame, ``cls`` for an iterable.

    Returns:
        A dataset of the same kind. Dropped examples are gone and relabelled ones have their new label, of the old
        one's type. Where an example shows several classes, its given label stays. Corrected completions of a language
        model stand in the field ``completion``, in the last of ``messages``, or in ``text``.

    Raises:
        SgoifError: No id of the dataset is in the manifest; an example's label is not the one that was reviewed; or
            completions were corrected, and the items are tokenised already, so that they cannot be put in. Labels are
            compared here where the dataset lists them, else when the example is read.
    """
    changes = read_changes(manifest)
    if hasattr(dataset, "iloc") and hasattr(dataset, "columns"):
        return _clean_frame(dataset, changes, label)
    if hasattr(dataset, "select") and hasattr(dataset, "features"):
        return _clean_columns(dataset, changes, label)
    if isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        return CleanedStream(dataset, changes, label or "cls")
    return _clean_items(dataset, changes)


class CleanedDataset(Dataset[Any]):
    """A map-style dataset with the examples at the positions ``kept``; some have other labels or completions."""

    def __init__(
        self,
        dataset: Dataset[Any],
        kept: NDArray[np.int64],
        relabelled: Mapping[int, Change],
        ids: Sequence[Any],
        path: str,
    ) -> None:
        self.dataset, self.kept, self.path = dataset, kept, path  # of the manifest, for messages
        self.relabelled = dict(relabelled)
        self.ids: Sequence[Any] = _Picked(ids, kept)

    def __len__(self) -> int:
        return len(self.kept)

    def __getitem__(self, index: int) -> Any:
        position = int(self.kept[index])
        item = self.dataset[position]
        if position not in self.relabelled:
            return item
        if self.relabelled[position].completion is not None:
            return edit_item(item, self.relabelled[position], self.ids[index], self.path)
        if not isinstance(item, tuple | list) or len(item) < 2:
            raise SgoifError(f"items must be (input, label) or (input, label, id), got {type(item).__name__}.")
        changed = new_label(self.relabelled[position], item[1], self.ids[index], self.path)
        return type(item)((item[0], changed, *item[2:]))

    def __getattr__(self, name: str) -> Any:
        """Labels of all examples that stay, under the name that the dataset itself has for them."""
        if name not in ("targets", "labels"):
            raise AttributeError(name)
        known = _list_labels(self.dataset, name)
        if known is None:
            raise AttributeError(name)
        changed = self.relabelled
        return [changed[i].label if i in changed else int(known[i]) for i in self.kept.tolist()]


class CleanedStream(IterableDataset[Any]):
    """Passes dictionaries on, iterated anew for every pass; an example is known by its ``__key__``.

    The label, under the key ``label``, is a number, or its digits as text or bytes.
    """

    def __init__(self, samples: Iterable[Mapping[str, Any]], changes: Changes, label: str) -> None:
        self.samples, self.changes, self.label = samples, changes, label

    def __iter__(self) -> Iterator[Any]:
        unknown: set[str] | None = set()  # None: the manifest and the samples are known to belong together
        for sample in self.samples:
            key = _key(sample)
            change = self.changes.get(key)
            if change is not None:
                unknown = None
            elif unknown is not None:
                unknown.add(key)
                if len(unknown) == _PROBED:
                    self._need_known(unknown)
                    unknown = None
            if change is not None and change.is_dropped:
                need_same_text(sample, change, key, self.changes.path)
            if change is None:
                yield sample
            elif change.completion is not None:
                yield edit_item(sample, change, key, self.changes.path)
            elif change.label is not None:
                yield {**sample, self.label: self._relabel(sample, key)}
        if unknown:
            self._need_known(unknown)

    def _relabel(self, sample: Mapping[str, Any], key: str) -> Any:
        if self.label not in sample:
            raise SgoifError(f"sample {key!r} has no {self.label!r}; it has {', '.join(sample)}. Pass label=.")
        return new_label(self.changes.by_id[key], sample[self.label], key, self.changes.path)

    def _need_known(self, keys: set[str]) -> None:
        if not self.changes.know_any(keys):
            raise SgoifError(
                f"none of {len(keys)} keys is in '{self.changes.path}': they look like {min(keys)!r}, the manifest's "
                f"ids like {self.changes.first_id()!r}."
            )


def _key(sample: Any) -> str:
    if not isinstance(sample, Mapping) or "__key__" not in sample:
        raise SgoifError(
            f"an iterable must give dictionaries with __key__, got {type(sample).__name__}; clean the samples before "
            "they are made into tuples, or pass a map-style dataset."
        )
    return str(sample["__key__"])


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
    edits = ((ids[at], dataset[at], change) for at, change in found.items() if change.completion is not None)
    need_editable(edits, changes.path)
    _check_dropped(dataset, ids, found, changes.path)
    gone = [position for position, change in found.items() if change.is_dropped]
    kept = np.delete(np.arange(len(dataset)), np.array(gone, dtype=np.int64))
    relabelled = {position: change for position, change in found.items() if not change.is_dropped}
    return CleanedDataset(dataset, kept, relabelled, ids, changes.path)


def _check_dropped(dataset: Any, ids: Sequence[Any], found: Mapping[int, Change], path: str) -> None:
    """Raise where a sequence that goes has another completion than was reviewed."""
    for position, change in found.items():
        if change.is_dropped and change.content:
            need_same_text(dataset[position], change, ids[position], path)


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
    elif len(dataset) and isinstance(dataset[0], Mapping) and ID_KEY in dataset[0]:
        yield [dataset[i][ID_KEY] for i in range(len(dataset))]
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
    known = (_list_labels(dataset, name) for name in ("targets", "labels"))
    listed = [labels for labels in known if labels is not None]
    for position, change in found.items() if listed else ():
        need_reviewed(change, listed[0][position], ids[position], path)


def _list_labels(dataset: Any, name: str) -> Sequence[Any] | None:
    """Labels of all examples, where a dataset lists them."""
    if isinstance(dataset, Subset):
        inner = _list_labels(dataset.dataset, name)
        return None if inner is None else _Picked(inner, np.asarray(dataset.indices, dtype=np.int64))
    known = getattr(dataset, name, None)
    if known is None and hasattr(dataset, "dataset"):  # with_ids
        return _list_labels(dataset.dataset, name)
    return known if known is not None and hasattr(known, "__len__") and len(known) == len(dataset) else None


def _clean_columns(dataset: Any, changes: Changes, label: str | None) -> Any:
    """Clean a Hugging Face ``Dataset``, known by its methods: columns other than the label's are not copied."""
    if not changes.has_labels():
        ids = list(dataset["id"]) if "id" in dataset.column_names else range(len(dataset))
        kept, edits = _clean_rows([0] * len(dataset), ids, changes, "dataset"), _find_edits(ids, changes)
        _check_dropped(dataset, ids, _positions_of(ids, changes), changes.path)
        if edits:
            name, values = edit_column(dataset.column_names, dataset, edits, changes.path)
            dataset = _replace_column(dataset, name, values)
        return dataset.select(kept)
    with_classes = [name for name, feature in dataset.features.items() if hasattr(feature, "names")]
    name = _label_column(dataset.column_names, label or (with_classes[0] if len(with_classes) == 1 else None))
    ids = list(dataset["id"]) if "id" in dataset.column_names else range(len(dataset))
    labels = list(dataset[name])
    kept = _clean_rows(labels, ids, changes, "dataset")
    return _replace_column(dataset, name, labels).select(kept)


def _replace_column(dataset: Any, name: str, values: list[Any]) -> Any:
    """A Hugging Face ``Dataset`` with other values in a column, of the same type and at the same place."""
    feature, rest = dataset.features[name], dataset.remove_columns(name)
    if "feature" in inspect.signature(rest.add_column).parameters:
        found = rest.add_column(name, values, feature=feature)
    else:
        found = rest.add_column(name, values).cast_column(name, feature)  # older versions copy everything here
    return found.select_columns(dataset.column_names)


def _find_edits(ids: Sequence[Any], changes: Changes) -> dict[int, tuple[object, Change]]:
    """Ids and changes of the rows whose completion was corrected, by row."""
    found = _positions_of(ids, changes)
    return {row: (ids[row], change) for row, change in found.items() if change.completion is not None}


class _FrameRows:
    """Rows of a frame as dictionaries, by position."""

    def __init__(self, frame: Any) -> None:
        self._frame = frame

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {str(name): value for name, value in self._frame.iloc[row].items()}


def _clean_frame(frame: Any, changes: Changes, label: str | None) -> Any:
    """Clean a pandas ``DataFrame``, known by its methods."""
    names = [str(name) for name in frame.columns]
    if not changes.has_labels():
        ids = frame["id"].tolist() if "id" in names else range(len(frame))
        kept, edits = _clean_rows([0] * len(frame), ids, changes, "table"), _find_edits(ids, changes)
        _check_dropped(_FrameRows(frame), ids, _positions_of(ids, changes), changes.path)
        if edits:
            name, values = edit_column(names, frame, edits, changes.path)
            frame = frame.assign(**{name: values})
        return frame.iloc[kept]
    column = _label_column(names, label)
    ids, labels = frame["id"].tolist() if "id" in names else range(len(frame)), frame[column].tolist()
    kept = _clean_rows(labels, ids, changes, "table")
    return frame.assign(**{column: labels}).iloc[kept]


def _label_column(names: Sequence[str], label: str | None) -> str:
    found = label or next((name for name in _USUAL if name in names), None)
    if found not in names:
        raise SgoifError(f"which column is the label? The table has {', '.join(names)}. Pass label=.")
    return str(found)


def _clean_rows(labels: list[Any], ids: Sequence[Any], changes: Changes, what: str) -> list[int]:
    """Put new labels into a list and return the rows that stay. A label is a number, or the name of a class."""
    if not changes.know_any(ids):
        raise SgoifError(
            f"no id of this {what} is in '{changes.path}': the {what}'s look like {next(iter(ids), None)!r}, the "
            f"manifest's like {changes.first_id()!r}. Give it a column `id` with the ids of the run."
        )
    numbers = changes.class_names() if any(isinstance(value, str) for value in labels) else {}
    names, kept = {number: name for name, number in numbers.items()}, []
    for row, id in enumerate(ids):
        change, old = changes.get(id), labels[row]
        if change is not None:
            is_name = isinstance(old, str) and not (old.isdigit() and old not in numbers)
            need_reviewed(change, numbers.get(old, -1) if is_name else old, id, changes.path)
            if change.is_dropped:
                continue
            if change.label is not None:
                labels[row] = names[change.label] if is_name else new_label(change, old, id, changes.path)
        kept.append(row)
    return kept
