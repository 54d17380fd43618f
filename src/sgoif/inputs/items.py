"""One item of a dataset, or one batch of a loader, taken apart into input, label and id."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, default_collate

from sgoif.devices import send
from sgoif.errors import SgoifError
from sgoif.inputs.labels import LABEL_KEYS

__all__ = ["ID_KEY", "MISSING", "Item", "attributes_of", "collate_inputs", "is_map_style", "move_to", "take_apart"]

ID_KEY = "id"


class _Missing:
    def __repr__(self) -> str:
        return "missing"


MISSING = _Missing()


class Item(NamedTuple):
    """One item or one batch, taken apart."""

    input: Any
    label: Any = MISSING
    id: Any = MISSING


def take_apart(item: Any) -> Item:
    """Input, label and id of an item ``(input, label)``, ``(input, label, id)``, a dictionary or an object.

    Of a dictionary the label is under one of :data:`LABEL_KEYS`, the id under ``"id"``; all else is the input, as a
    dictionary. An object with such an attribute is read like a dictionary. Anything else is an input without a label.
    """
    fields = _fields(item)
    if fields is not None:
        key = next((key for key in LABEL_KEYS if key in fields), None)
        rest = {name: value for name, value in fields.items() if name != ID_KEY and name not in LABEL_KEYS}
        return Item(rest, MISSING if key is None else fields[key], fields.get(ID_KEY, MISSING))
    if isinstance(item, tuple | list) and len(item):
        return Item(item[0], *item[1:3])
    return Item(item)


def _fields(item: Any) -> Mapping[str, Any] | None:
    if isinstance(item, Mapping):
        return item
    names: Sequence[str] = getattr(item, "_fields", ())  # of a named tuple, whose second entry may not be the label
    if isinstance(item, tuple):
        is_named = any(key in names for key in LABEL_KEYS) and names[1] not in LABEL_KEYS
        return dict(zip(names, item)) if is_named else None
    if isinstance(item, Tensor | np.ndarray | list | str | bytes | int | float):
        return None
    found = attributes_of(item)
    return found if any(key in found for key in LABEL_KEYS) else None


def attributes_of(item: Any) -> dict[str, Any]:
    """The public fields of an object."""
    if dataclasses.is_dataclass(item):
        return {field.name: getattr(item, field.name) for field in dataclasses.fields(item)}
    return {name: value for name, value in getattr(item, "__dict__", {}).items() if not name.startswith("_")}


def collate_inputs(inputs: Sequence[Any], role: str) -> Any:
    """Put inputs into one batch; lists of numbers, as Hugging Face rows hold them, become tensors first."""
    try:
        if isinstance(inputs[0], Mapping):
            inputs = [{key: _as_tensor(value) for key, value in item.items()} for item in inputs]
        return default_collate(list(inputs))
    except (TypeError, RuntimeError, KeyError) as error:
        raise SgoifError(
            f"inputs of {role} could not be put into one batch: {str(error).splitlines()[0]} Give tensors of one shape "
            f"(a transform, padding), or pass a DataLoader with the collate_fn of your training as {role}."
        ) from error


def _as_tensor(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    try:
        return torch.tensor(value)
    except (TypeError, ValueError, RuntimeError):
        return value


def move_to(value: Any, device: torch.device) -> Any:
    """Tensors of a batch on a device, whatever holds them."""
    if isinstance(value, Tensor):
        return send(value, device)
    if isinstance(value, Mapping):
        return {key: move_to(item, device) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(move_to(item, device) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(move_to(item, device) for item in value)
    return value


def is_map_style(source: Any) -> bool:
    """Whether items can be read by position."""
    is_sized = hasattr(source, "__getitem__") and hasattr(source, "__len__")
    return is_sized and not isinstance(source, IterableDataset | Mapping | str | bytes)
