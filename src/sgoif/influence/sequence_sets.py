"""Datasets of sequences for a language model, read by position and padded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from sgoif.errors import SgoifError
from sgoif.inputs.items import ID_KEY, is_map_style, move_to
from sgoif.rng import find_generators, preserve_rng
from sgoif.tasks.sequences import IGNORED

__all__ = ["SequenceSet", "batch_of_one", "pad_items"]

_LISTS = ("input_ids", "labels", "attention_mask", "token_type_ids", "position_ids", "decoder_input_ids")
_CHECKED = 16  # sequences that are read at once before anything else is done, so that a mistake shows early


def pad_items(items: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Collate items with ``input_ids`` and ``labels``, padded on the right where lengths differ.

    >>> pad_items([{"input_ids": [5, 6], "labels": [-100, 6]}, {"input_ids": [7], "labels": [7]}])["labels"].tolist()
    [[-100, 6], [7, -100]]
    """
    batch: dict[str, Tensor] = {}
    for key in (key for key in _LISTS if key in items[0]):
        parts = [torch.as_tensor(item[key]) for item in items]
        fill = IGNORED if key == "labels" else 0
        batch[key] = nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=fill)
    if "input_ids" in batch and "attention_mask" not in batch:
        ones = [torch.ones(len(item["input_ids"]), dtype=torch.long) for item in items]
        batch["attention_mask"] = nn.utils.rnn.pad_sequence(ones, batch_first=True)
    return batch


def batch_of_one(item: Mapping[str, Any]) -> dict[str, Any]:
    """A batch with one sequence, of an item of a dataset or of such a batch.

    Raises:
        SgoifError: it has no ``input_ids`` and ``labels``, or more than one sequence.
    """
    if not isinstance(item, Mapping) or "input_ids" not in item or "labels" not in item:
        found = ", ".join(map(str, item)) if isinstance(item, Mapping) else type(item).__name__
        raise SgoifError(f"a sequence is a dictionary with input_ids and labels, got {found}.")
    sizes = torch.as_tensor(item["labels"]).shape
    if len(sizes) == 1:
        return dict(pad_items([item]))
    if len(sizes) != 2 or sizes[0] != 1:
        raise SgoifError(f"pass one sequence, with labels [T] or [1, T]; these labels have shape {tuple(sizes)}.")
    return {name: value for name, value in item.items() if name != "id"}


class SequenceSet:
    """A dataset of sequences: dictionaries with ``input_ids`` and ``labels``, and ids where they have them.

    Args:
        given: map-style, or a ``DataLoader`` over such a dataset, whose collator is used.
        role: what it is to the user, for messages.
        device: where batches go.
    """

    def __init__(self, given: Any, *, role: str, device: torch.device) -> None:
        dataset: Any = given.dataset if isinstance(given, DataLoader) else given
        self._collate: Callable[[list[Any]], Any] = given.collate_fn if isinstance(given, DataLoader) else pad_items
        self._dataset, self._role, self._device = dataset, role, device
        if not is_map_style(dataset) or not len(dataset):
            raise SgoifError(f"{role} must be a map-style dataset with at least one sequence.")
        with preserve_rng(own=self.generators):  # a dataset may draw random numbers
            if not any(self._can_predict(start) for start in range(0, len(self), _CHECKED)):
                raise SgoifError(f"no sequence of {role} has a token to predict: all labels are {IGNORED}.")

    def __len__(self) -> int:
        return len(self._dataset)

    def _can_predict(self, start: int) -> bool:
        """Whether one of some sequences has a token to predict."""
        _, batch = self.read(range(start, min(len(self), start + _CHECKED)))
        return bool((batch["labels"] != IGNORED).any())

    @property
    def generators(self) -> Any:
        """Generators of random numbers that the dataset and its collator own."""
        return find_generators(self._dataset, self._collate)

    def read(self, places: Sequence[int]) -> tuple[list[Any], dict[str, Any]]:
        """Ids, which are positions where the items have none, and the batch of some sequences, on the device.

        A collator that packs sequences into one row is called for each of them.

        Raises:
            SgoifError: the batch has no labels, or not one row of them per sequence.
        """
        items = [self._dataset[place] for place in places]
        is_named = all(isinstance(item, Mapping) and ID_KEY in item for item in items)
        ids = [item[ID_KEY] for item in items] if is_named else list(places)
        if is_named:  # collators stack what they are given, and an id may be a word
            items = [{name: value for name, value in item.items() if name != ID_KEY} for item in items]
        batch = dict(self._collate(items))
        if len(self._labels_of(batch)) != len(items):  # packed: a row each, and these padded
            alone = [dict(self._collate([item])) for item in items]
            if any(len(self._labels_of(one)) != 1 for one in alone):
                raise SgoifError(f"the collator of {self._role} does not give one row of labels per sequence.")
            rows = [{name: one[name][0] for name in _LISTS if isinstance(one.get(name), Tensor)} for one in alone]
            batch = dict(pad_items(rows))
        moved: dict[str, Any] = move_to(batch, self._device)
        return ids, moved

    def _labels_of(self, batch: Mapping[str, Any]) -> Tensor:
        labels = batch.get("labels")
        if not isinstance(labels, Tensor) or labels.dim() != 2:
            raise SgoifError(
                f"the sequences of {self._role} have no labels [sequences, positions]; give every item `labels`, "
                f"{IGNORED} where no token is to be predicted."
            )
        return labels
