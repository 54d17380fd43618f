"""Labels of a dataset: found without reading its items where that is safe, and turned into class numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from sgoif.errors import SgoifError
from sgoif.inputs.ids import is_subset, is_with_ids

__all__ = ["LABEL_KEYS", "KnownLabels", "as_classes", "class_names_of", "find_column", "find_labels", "is_hugging_face"]

LABEL_KEYS = ("labels", "label", "targets", "target", "y")
_SHOWN = 5  # values in a message


class KnownLabels(NamedTuple):
    """Labels that a dataset keeps beside its items."""

    values: Any  # a tensor, an array or a list, one entry per example
    is_sure: bool  # whether items are sure to give the same


def find_labels(dataset: Any) -> KnownLabels | None:
    """Labels of a map-style dataset without reading its items; None where there are none or items change them.

    Those of a class that is not known may differ from what its items give: check some items unless ``is_sure``.
    """
    if type(dataset) is TensorDataset:
        return KnownLabels(dataset.tensors[1], True) if len(dataset.tensors) > 1 else None
    if is_with_ids(dataset):
        return find_labels(dataset.dataset)
    if is_subset(dataset):
        inner = find_labels(dataset.dataset)
        if inner is None:
            return None
        return KnownLabels(_take(inner.values, dataset.indices), inner.is_sure and type(dataset) is Subset)
    if type(dataset) is ConcatDataset:
        parts = [find_labels(part) for part in dataset.datasets]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        joined = [value for part in known for value in _as_list(part.values)]
        return KnownLabels(joined, all(part.is_sure for part in known))
    if is_hugging_face(dataset):
        values = find_column(dataset, LABEL_KEYS)
        return None if values is None else KnownLabels(values, True)
    return _attribute(dataset)


def _attribute(dataset: Any) -> KnownLabels | None:
    """``targets`` or ``labels``, as torchvision keeps them; None where a transform of targets is known of."""
    if getattr(dataset, "target_transform", None) is not None:
        return None
    joint = getattr(dataset, "transforms", None)
    if joint is not None and getattr(joint, "target_transform", joint) is not None:
        return None
    for name in ("targets", "labels"):
        found = getattr(dataset, name, None)
        if isinstance(found, Tensor | np.ndarray | list | tuple) and len(found) == len(dataset):
            reader = getattr(type(dataset).__getitem__, "__module__", None) or ""
            return KnownLabels(found, reader.startswith("torchvision.datasets"))
    return None


def is_hugging_face(dataset: Any) -> bool:
    """Whether it is a map-style dataset of Hugging Face's library, which is not imported for the answer."""
    return type(dataset).__module__.startswith("datasets.") and hasattr(dataset, "with_format")


def find_column(dataset: Any, names: Sequence[str]) -> Any | None:
    """The first of these columns that rows of a Hugging Face dataset show; None where a function makes the rows."""
    if dataset.format["type"] == "custom":
        return None
    name = next((name for name in names if name in dataset.format["columns"]), None)
    return None if name is None else dataset.with_format("numpy")[name][:]


def class_names_of(dataset: Any) -> Sequence[str] | None:
    """Names of the classes, where a dataset keeps them."""
    if isinstance(dataset, Subset) or is_with_ids(dataset):
        return class_names_of(dataset.dataset)
    if is_hugging_face(dataset):
        name = next((name for name in LABEL_KEYS if name in dataset.features), None)
        names = getattr(dataset.features[name], "names", None) if name else None
    else:
        names = getattr(dataset, "classes", None)
    is_named = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    return names if is_named else None


def as_classes(values: Any, role: str, class_names: Sequence[str] | None = None) -> Tensor:
    """Class numbers ``[N]`` of labels as users have them.

    Args:
        values: numbers in a tensor, an array or a list; names where ``class_names`` are given.
        role: what the examples are, for messages.
        class_names: in the order of the model's outputs.

    Raises:
        SgoifError: a label is neither a class number nor a known name.
    """
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        values = torch.from_numpy(np.ascontiguousarray(values))
    if isinstance(values, Tensor):
        return _check_tensor(values.detach().cpu(), role)
    values = _as_list(values)
    if any(isinstance(value, str) for value in values):
        return _number_names(values, role, class_names)
    try:
        return _check_tensor(torch.as_tensor(np.array([_number(value) for value in values])), role)
    except (TypeError, ValueError, RuntimeError) as error:
        shown = next((value for value in values if not _is_number(value)), values[0] if values else None)
        raise SgoifError(
            f"a label of {role} is {_describe(shown)}, expected one class number per example; {_cure(shown)}"
        ) from error


def _check_tensor(values: Tensor, role: str) -> Tensor:
    if values.dim() == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.dim() != 1:
        raise SgoifError(
            f"a label of {role} is {_describe(values[0])}, expected one class number per example; {_cure(values[0])}"
        )
    found = values.long()
    if values.is_floating_point() and not torch.equal(found.to(values.dtype), values):
        odd = values[found.to(values.dtype) != values][:_SHOWN].tolist()
        raise SgoifError(f"labels of {role} must be class numbers, but there are {', '.join(map(str, odd))}.")
    return found


def _number_names(values: Sequence[Any], role: str, names: Sequence[str] | None) -> Tensor:
    distinct = list(dict.fromkeys(str(value) for value in values))
    if not names:
        raise SgoifError(
            f"labels of {role} are strings ({_show(distinct)}); pass class_names=, the names in the order of the "
            "model's outputs."
        )
    numbers = {str(name): number for number, name in enumerate(names)}
    unknown = [name for name in distinct if name not in numbers]
    if unknown:
        raise SgoifError(
            f"labels of {role} are not among class_names: {_show(unknown)}; class_names are {_show(list(numbers))}. "
            "Add them in the order of the model's outputs, or leave these examples out."
        )
    return torch.tensor([numbers[str(value)] for value in values])


def _number(value: Any) -> int | float:
    if isinstance(value, Tensor | np.ndarray | np.generic):
        return value.item()
    if isinstance(value, int | float):
        return value
    raise TypeError(f"not a number: {value!r}")


def _is_number(value: Any) -> bool:
    try:
        _number(value)
    except (TypeError, ValueError, RuntimeError):
        return False
    return True


def _describe(value: Any) -> str:
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"of shape {tuple(shape)}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    return f"{value!r:.60}"


def _cure(value: Any) -> str:
    if value is None:
        return "leave examples without a label out."
    if isinstance(value, Tensor | np.ndarray | list | tuple):
        return (
            "labels of several tags want task='multilabel', probabilities their argmax, and one label per token "
            "(sequences) is not supported yet."
        )
    return "give integers, or strings with class_names=."


def _show(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(repr(name)[:40] for name in names[:_SHOWN]) + more


def _take(values: Any, indices: Any) -> Any:
    if isinstance(values, Tensor):
        return values[torch.as_tensor(np.asarray(indices, np.int64))]
    if isinstance(values, np.ndarray):
        return values[np.asarray(indices, np.int64)]
    return [values[int(i)] for i in indices]


def _as_list(values: Any) -> list[Any]:
    return values.tolist() if isinstance(values, Tensor | np.ndarray) else list(values)
