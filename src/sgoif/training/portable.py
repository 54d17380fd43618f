"""States of plain parts, which any checkpoint may hold: containers, numbers, strings and tensors.

``torch.load`` reads nothing else by default, and frameworks put our state into the same file as the user's weights: an
array in it would make their checkpoint unreadable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["portable", "restored"]

_KEYS = {"dtype", "shape", "bytes"}


def portable(state: Any) -> Any:
    """Write arrays as the tensors of their bytes, and numpy's numbers as Python's. Shares memory with the arrays.

    >>> portable({"ids": np.array(["a", "b"])})["ids"]["dtype"]
    '<U1'
    """
    if isinstance(state, np.ndarray):
        return _packed(state)
    if isinstance(state, np.generic):
        return state.item()
    if isinstance(state, Mapping):
        return {key: portable(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [portable(value) for value in state]
    return state


def restored(state: Any) -> Any:
    """Undo :func:`portable`; tuples stay lists. A state that holds arrays passes through.

    >>> restored(portable({"ids": np.array(["a", "b"])}))["ids"].tolist()
    ['a', 'b']
    """
    if isinstance(state, Mapping):
        if state.keys() == _KEYS:
            flat = state["bytes"].cpu().numpy().view(state["dtype"])
            return flat.reshape(tuple(state["shape"]))
        return {key: restored(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [restored(value) for value in state]
    return state


def _packed(array: NDArray[Any]) -> dict[str, Any]:
    if array.dtype.kind == "O":  # ids as data frames give them
        array = np.asarray(array.tolist())
    flat = np.require(array.reshape(-1), requirements=["C", "W"])
    return {"dtype": array.dtype.str, "shape": list(array.shape), "bytes": torch.from_numpy(flat.view(np.uint8))}
