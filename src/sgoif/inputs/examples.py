"""Examples as users have them, as one object with labels, ids and inputs by position.

Tensors or arrays, map-style datasets of tuples, dictionaries or objects, Hugging Face datasets and loaders over any of
these. Whatever is read, the global random generators stay as they were found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

from sgoif.errors import SgoifError
from sgoif.inputs.ids import ids_of, is_subset, is_with_ids
from sgoif.inputs.items import ID_KEY, MISSING, Item, attributes_of, collate_inputs, is_map_style, move_to, take_apart
from sgoif.inputs.labels import LABEL_KEYS, as_classes, find_column, find_labels, is_hugging_face
from sgoif.rng import find_generators, preserve_rng

__all__ = ["Examples", "IdKind"]

_CHECKED = 1000  # items that a dataset's own list of labels is checked against
_CHUNK = 64  # items that are read at once where a loader's collate function gives the labels

IdKind = Literal["given", "subset", "position"]


class Examples:
    """Examples by position: ids, labels as classes or tags, inputs collated.

    Args:
        source: a tuple ``(inputs, labels)`` or ``(inputs, labels, ids)`` of tensors or arrays, or a dictionary of such
            columns; a map-style dataset of ``(input, label)``, ``(input, label, id)``, dictionaries or objects; a
            ``DataLoader`` over one, of which the dataset and ``collate_fn`` are used; inputs alone where labels are not
            needed.
        role: what the examples are, as the user called them, for messages.
        device: where inputs are moved to.

    A dataset's labels are read once, from what it keeps beside its items where these are sure to give the same.
    """

    def __init__(self, source: Any, *, role: str = "anchors=", device: torch.device | str = "cpu") -> None:
        self.source, self.role, self.device = source, role, torch.device(device)
        self._columns: Item | None = None
        self._dataset: Any = None
        self._collate: Callable[[list[Any]], Any] | None = None  # a loader's own
        if isinstance(source, DataLoader):
            self._dataset = source.dataset
            if source.batch_size is not None or source.batch_sampler is not None:
                self._collate = None if source.collate_fn is default_collate else source.collate_fn
        elif _is_columns(source):
            self._columns = _read_columns(source, role)
        else:
            self._dataset = source
        if self._columns is None:
            self._refuse_unreadable()
        self._size = len(self._dataset) if self._columns is None else _length(self._columns.input)
        if not self._size:
            raise SgoifError(f"{role} is empty; at least one example is needed.")
        self._claimed: NDArray[Any] | None = None  # labels claimed for the items, checked when these are read

    def __len__(self) -> int:
        return self._size

    @property
    def dataset(self) -> Any:
        """What is read: the source, or the dataset of a loader."""
        return self.source if self._columns is not None else self._dataset

    # Labels.

    @property
    def has_labels(self) -> bool:
        """Whether there are labels; reads one item at most."""
        return self._first.label is not MISSING

    def classes(self, class_names: Sequence[str] | None = None) -> Tensor:
        """Class numbers ``[N]``, on the CPU; names are numbered by ``class_names``.

        Raises:
            SgoifError: there are no labels, or they are not classes.
        """
        found = as_classes(self._labels, self.role, class_names)
        if len(found) != len(self):
            raise SgoifError(f"{self.role} has {len(self)} inputs but {len(found)} labels.")
        return found

    def tags(self) -> Tensor:
        """Targets ``[N, C]``, in float32."""
        values = self._labels
        if not isinstance(values, Tensor):
            try:
                values = torch.stack([torch.as_tensor(value).float() for value in values])
            except (TypeError, ValueError, RuntimeError) as error:
                raise SgoifError(
                    f"targets of {self.role} are not vectors of one length: {str(error).splitlines()[0]}"
                ) from error
        if len(values) != len(self):
            raise SgoifError(f"{self.role} has {len(self)} inputs but targets of {len(values)}.")
        return values.detach().float()

    def need_labels(self) -> None:
        """Raise with the cure if there are no labels."""
        if not self.has_labels:
            raise SgoifError(f"{self.role} has no labels: {self._describe_items()}")

    @cached_property
    def _labels(self) -> Any:
        self.need_labels()
        if self._columns is not None:
            return self._columns.label
        if self._collate is None:
            known = find_labels(self._dataset)
            if known is not None and len(known.values) == len(self):
                if known.is_sure:
                    return known.values
                claimed = _comparable(known.values)
                if claimed is not None and self._agrees(claimed):
                    self._claimed = claimed
                    return known.values
        return self._items.label

    def _agrees(self, claimed: NDArray[Any]) -> bool:
        """Whether some items, of every claimed label one at least, give the labels that the dataset claims for them."""
        _, first = np.unique(claimed, return_index=True)
        spaced = np.linspace(0, len(self) - 1, min(len(self), _CHECKED)).round().astype(np.int64)
        positions = np.unique(np.concatenate([first[:_CHECKED], spaced]))
        with self._keep_rng():
            return all(self._is_as_claimed(int(position), claimed) for position in positions)

    def _is_as_claimed(self, position: int, claimed: NDArray[Any]) -> bool:
        try:
            item = self._read(position)
        except SgoifError:
            return True  # an item that cannot be read says nothing; it is an error when its turn comes
        return _same(item.label, claimed[position])

    # Ids.

    @cached_property
    def ids(self) -> Sequence[Any]:
        """The items' own ids, those of the dataset, or positions in what everything was cut from."""
        if self._columns is not None:
            return range(len(self)) if self._columns.id is MISSING else self._columns.id
        if _has_ids(self._dataset) or self._first.id is MISSING:
            return ids_of(self._dataset)
        if type(self._dataset) is TensorDataset:
            return self._dataset.tensors[2].tolist()
        column = find_column(self._dataset, [ID_KEY]) if is_hugging_face(self._dataset) else None
        return self._items.id if column is None else column.tolist()  # type: ignore[no-any-return]

    @cached_property
    def id_kind(self) -> IdKind:
        """Whether ids were given by the user, are positions in a larger dataset, or just positions."""
        source = self._dataset
        if is_with_ids(source) and not source.has_given_ids:
            return Examples(source.dataset).id_kind
        if is_subset(source) and not _has_own_ids(source):
            return "given" if Examples(source.dataset).id_kind == "given" else "subset"
        # an index that items carry is a position too; two datasets that count from 0 do not share examples by that
        is_counted = self.ids == range(len(self)) or all(_plain(id) == i for i, id in enumerate(self.ids))
        return "position" if is_counted else "given"

    @property
    def given_ids(self) -> frozenset[Any] | None:
        """The ids as a set of plain values where the user gave them; None where they are positions."""
        return frozenset(map(_plain, self.ids)) if self.id_kind == "given" else None

    # Items.

    def inputs(self, positions: Tensor, on_error: Callable[[int], None] | None = None) -> Any:
        """The inputs at these positions, collated and on the device.

        Args:
            positions: ``[B]``.
            on_error: told the position of an item that cannot be read, before the error is raised.
        """
        return move_to(self._batch(positions, on_error).input, self.device)

    def labelled(self, positions: Tensor, class_names: Sequence[str] | None = None) -> tuple[Any, Tensor]:
        """Inputs and class numbers at these positions; no other label is read."""
        self.need_labels()
        batch = self._batch(positions)
        return move_to(batch.input, self.device), as_classes(batch.label, self.role, class_names)

    def _batch(self, positions: Tensor, on_error: Callable[[int], None] | None = None) -> Item:
        if self._columns is not None:
            inputs, label = _index(self._columns.input, positions), self._columns.label
            return Item(inputs, label if label is MISSING else _index(label, positions))
        items = []
        with self._keep_rng():
            for position in positions.tolist():
                try:
                    items.append(self._dataset[position])
                    self._check_claim(position, items[-1])
                except Exception:
                    if on_error is not None:
                        on_error(position)
                    raise
            if self._collate is not None:
                return take_apart(self._collate(items))
            parts = [take_apart(item) for item in items]
            labels = [part.label for part in parts]
            inputs = collate_inputs([part.input for part in parts], self.role)
        return Item(inputs, MISSING if any(label is MISSING for label in labels) else labels)

    def _check_claim(self, position: int, item: Any) -> None:
        """Compare the label, for free, with the one that the dataset keeps beside its items."""
        if self._claimed is None:
            return
        label, claimed = take_apart(item).label, self._claimed[position]
        if not _same(label, claimed):
            raise SgoifError(
                f"item {position} of {self.role} has label {label}, but the dataset's own list of labels says "
                f"{int(claimed)}; keep that list as the items are, or rename it so that it is not taken for labels."
            )

    @cached_property
    def _first(self) -> Item:
        if self._columns is not None:
            return self._columns
        with self._keep_rng():
            return self._read(0) if self._collate is None else take_apart(self._collate([self._dataset[0]]))

    def _keep_rng(self) -> AbstractContextManager[None]:
        """Around whatever reads items: all generators that they may draw from stay as found."""
        return preserve_rng(self.device, own=self._generators)

    @cached_property
    def _generators(self) -> Sequence[Any]:
        return find_generators(self._dataset, self._collate)

    def _read(self, position: int) -> Item:
        try:
            return take_apart(self._dataset[position])
        except Exception as error:
            raise SgoifError(
                f"item {position} of {self.role} could not be read, {type(error).__name__}: {error}; mend it or leave "
                "it out."
            ) from error

    @cached_property
    def _items(self) -> Item:
        """Labels and ids of all items, read once; inputs are not kept."""
        labels: list[Any] = []
        ids: list[Any] = []
        with self._keep_rng():
            if self._collate is None:
                labels, ids = map(list, zip(*(self._read(position)[1:] for position in range(len(self)))))
                return Item(None, labels, ids)
            for start in range(0, len(self), _CHUNK):
                stop = min(start + _CHUNK, len(self))
                batch = take_apart(self._collate([self._dataset[i] for i in range(start, stop)]))
                labels += list(batch.label)
                ids += [] if batch.id is MISSING else list(batch.id)
        return Item(None, labels, ids)

    # Messages.

    def _refuse_unreadable(self) -> None:
        source = self._dataset
        if is_map_style(source):
            return
        kind = type(source).__name__
        if isinstance(source, Mapping):
            raise SgoifError(
                f"{self.role} is a dictionary with {_list(source)}, without labels under one of "
                f"{', '.join(LABEL_KEYS)}; pass one of its datasets, or task='sequences' for groups of evaluation "
                "sequences of a language model."
            )
        if isinstance(source, IterableDataset) or hasattr(source, "__iter__"):
            raise SgoifError(
                f"{self.role} is a {kind}, whose items come in one order only, but they are needed by position; read "
                "some into a list first: list(itertools.islice(dataset, 2000))."
            )
        raise SgoifError(
            f"{self.role} is a {kind}; expected a tuple (inputs, labels) of tensors, a map-style dataset or a "
            "DataLoader over one."
        )

    def _describe_items(self) -> str:
        if self._columns is not None:
            return "it is inputs alone; pass a tuple (inputs, labels)."
        with self._keep_rng():
            item = self._collate([self._dataset[0]]) if self._collate is not None else self._dataset[0]
        fields = item if isinstance(item, Mapping) else attributes_of(item)
        if fields:
            kind = "items have" if isinstance(item, Mapping) else f"items are {type(item).__name__} with"
            more = " Language models have task='sequences'." if "input_ids" in fields else ""
            return f"its {kind} {_list(fields)}, expected one of {', '.join(LABEL_KEYS)}; rename the label so.{more}"
        return f"its items are {type(item).__name__}; give (input, label)."


def _is_columns(source: Any) -> bool:
    if isinstance(source, Tensor | np.ndarray):
        return True
    if isinstance(source, Mapping):
        return any(key in source for key in LABEL_KEYS)
    is_pair = isinstance(source, tuple) or (isinstance(source, list) and len(source) == 2)
    return is_pair and len(source) > 0 and (isinstance(source[0], Tensor | np.ndarray) or _is_table(source[0]))


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(item, Tensor | np.ndarray) for item in value.values())


def _read_columns(source: Any, role: str) -> Item:
    if isinstance(source, tuple) and len(source) > 3:
        raise SgoifError(f"{role} is a tuple of {len(source)}; expected (inputs, labels) or (inputs, labels, ids).")
    found = Item(source) if isinstance(source, Tensor | np.ndarray) else take_apart(source)
    inputs = _as_columns(found.input)
    if isinstance(source, list):
        _refuse_two_inputs(source, role)
    for name, values in (("labels", found.label), ("ids", found.id)):
        if values is not MISSING and len(values) != _length(inputs):
            raise SgoifError(f"{role} has {_length(inputs)} inputs but {len(values)} {name}.")
    ids = found.id.tolist() if isinstance(found.id, Tensor | np.ndarray) else found.id
    return Item(inputs, found.label, ids)


def _refuse_two_inputs(pair: list[Any], role: str) -> None:
    """Raise for a list of two inputs, which looks like inputs and their labels."""
    first, second = (torch.as_tensor(part) if isinstance(part, Tensor | np.ndarray) else None for part in pair)
    if first is None or second is None or first.shape != second.shape or not second.is_floating_point():
        return
    if first.dim() == 1 or role == "queries":
        raise SgoifError(
            f"{role} is a list of two tensors of shape {tuple(first.shape)}, where a pair is (inputs, labels), and "
            "labels are whole numbers; for two inputs pass torch.stack([a, b])."
        )


def _as_columns(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _as_columns(item) for key, item in value.items()}
    if not isinstance(value, np.ndarray):
        return value
    found = torch.from_numpy(np.ascontiguousarray(value))
    # numpy's own default, which hardly a model is in
    return found.to(torch.get_default_dtype()) if found.dtype == torch.float64 else found


def _index(value: Any, positions: Tensor) -> Any:
    if isinstance(value, Mapping):
        return {key: _index(item, positions) for key, item in value.items()}
    if isinstance(value, Tensor):
        return value[positions.to(value.device)]
    return value[positions.numpy()] if isinstance(value, np.ndarray) else [value[i] for i in positions.tolist()]


def _length(value: Any) -> int:
    return len(next(iter(value.values()))) if isinstance(value, Mapping) else len(value)


def _has_ids(dataset: Any) -> bool:
    """Whether ids are kept beside the items, here or in what a subset was cut from."""
    return _has_own_ids(dataset) or (is_subset(dataset) and _has_ids(dataset.dataset))


def _has_own_ids(dataset: Any) -> bool:
    own = getattr(dataset, "ids", None)
    return own is not None and not callable(own)


def _comparable(values: Any) -> NDArray[Any] | None:
    try:
        found = torch.as_tensor(np.asarray(values))
    except (TypeError, ValueError):
        return None
    return found.numpy() if found.dim() == 1 else None


def _same(label: Any, claimed: Any) -> bool:
    if isinstance(label, int):
        return bool(label == claimed)
    try:
        return bool(torch.as_tensor(label).item() == claimed.item())
    except (TypeError, ValueError, RuntimeError):
        return False


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _list(names: Any) -> str:
    return ", ".join(str(name) for name in list(names)[:12])
