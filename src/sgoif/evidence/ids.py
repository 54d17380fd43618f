"""Rows for ids: an example is known by its dataset id, and its sums live in a row of an array.

Ids are integers or strings, kept as given. Lookups and insertions are vectorised: ids lie in a few sorted runs, each at
least twice as long as the next, so that n insertions cost ``O(n log² n)`` in all and a lookup searches ``log n`` runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sgoif.errors import SgoifError

__all__ = ["IdIndex", "as_ids", "fold_of", "grow_rows", "hash_ids"]

Ids = NDArray[Any]  # int64 or fixed-width unicode


class IdIndex:
    """Maps ids to rows 0, 1, 2, … in the order in which they first came.

    All ids of an index are integers (int64), or all are strings. Numpy's strings end at trailing NUL characters, so ids
    that differ in these alone are one id.

    >>> index = IdIndex()
    >>> index.add(["cat.jpg", "dog.jpg", "cat.jpg"]).tolist()
    [0, 1, 0]
    >>> index.rows(["dog.jpg", "bird.jpg"]).tolist()  # -1: not known
    [1, -1]
    >>> index.ids.tolist()
    ['cat.jpg', 'dog.jpg']
    """

    def __init__(self, ids: Ids | Sequence[int] | Sequence[str] | None = None) -> None:
        self._runs: list[tuple[Ids, NDArray[np.int64]]] = []  # sorted ids and their rows, longest run first
        self._kind: str | None = None  # 'i' or 'U'
        self._size = 0
        if ids is not None:
            found = as_ids(ids)
            rows = self.add(found)
            if self._size != len(found):
                first = found[np.flatnonzero(np.bincount(rows)[rows] > 1)[0]].item()
                raise SgoifError(f"ids must be unique, but {first!r} comes more than once; use add() to allow repeats.")

    def __len__(self) -> int:
        return self._size

    @property
    def kind(self) -> str | None:
        """``"i"`` for integers, ``"U"`` for strings, None while the index is empty."""
        return self._kind

    @property
    def ids(self) -> Ids:
        """All ids by row; a new array."""
        if not self._runs:
            return np.empty(0, dtype=np.int64)
        keys = np.concatenate([keys for keys, _ in self._runs])
        rows = np.concatenate([rows for _, rows in self._runs])
        ordered = np.empty_like(keys)
        ordered[rows] = keys
        return ordered

    def rows(self, ids: ArrayLike) -> NDArray[np.int64]:
        """Look up rows ``[B]``; -1 where an id is not known."""
        kind, found = self._kind, self._find(self._check(ids))
        self._kind = kind  # a lookup does not decide what an empty index holds
        return found

    def add(self, ids: ArrayLike) -> NDArray[np.int64]:
        """Look up rows ``[B]``, giving new ids the next free ones."""
        wanted = self._check(ids)
        rows = self._find(wanted)
        new = rows < 0
        if new.any():
            keys, first, inverse = np.unique(wanted[new], return_index=True, return_inverse=True)
            fresh = np.empty(len(keys), dtype=np.int64)
            fresh[np.argsort(first)] = np.arange(self._size, self._size + len(keys))  # by first appearance
            rows[new] = fresh[inverse.reshape(-1)]
            self._size += len(keys)
            self._push(keys, fresh)
        return rows

    def _find(self, wanted: Ids) -> NDArray[np.int64]:
        rows = np.full(len(wanted), -1, dtype=np.int64)
        for keys, known in self._runs:
            place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
            hit = keys[place] == wanted
            rows[hit] = known[place[hit]]
        return rows

    def _push(self, keys: Ids, rows: NDArray[np.int64]) -> None:
        while self._runs and len(self._runs[-1][0]) < 2 * len(keys):
            older, older_rows = self._runs.pop()
            keys, rows = np.concatenate([older, keys]), np.concatenate([older_rows, rows])
            order = np.argsort(keys, kind="stable")
            keys, rows = keys[order], rows[order]
        self._runs.append((keys, rows))

    def _check(self, ids: ArrayLike) -> Ids:
        found = as_ids(ids)
        if len(found) == 0:
            return found
        kind = found.dtype.kind
        if self._kind is None:
            self._kind = kind
        elif kind != self._kind:
            names = {"i": "integers", "U": "strings"}
            raise SgoifError(
                f"this index holds {names[self._kind]}, but was given {names[kind]}; keep the ids to one type."
            )
        return found


def grow_rows(values: NDArray[Any], num_rows: int) -> NDArray[Any]:
    """Give an array room for so many rows, zeros at first; it at least doubles, so that copies cost O(n) in all."""
    if num_rows <= len(values):
        return values
    more = max(num_rows - len(values), len(values))
    return np.concatenate([values, np.zeros_like(values, shape=(more, *values.shape[1:]))])


def hash_ids(ids: ArrayLike) -> NDArray[np.uint64]:
    """Hash ids to 64 bits, the same on every machine and in every run: for folds, splits and buckets.

    Integers go through the finaliser of splitmix64. Strings are read as a polynomial in their code points first; equal
    strings hash equally whatever the width of the array that holds them.

    >>> bool(hash_ids(["a", "b"])[0] == hash_ids(["a", "a long one"])[0])
    True
    """
    found = as_ids(ids)
    if found.dtype.kind == "U":
        points = np.ascontiguousarray(found).view(np.uint32).reshape(len(found), -1)
        state = np.full(len(found), 0xCBF29CE484222325, dtype=np.uint64)
        for column in points.T:  # as many rounds as the longest id has characters; padding is passed over
            state = np.where(column == 0, state, (state ^ column) * np.uint64(0x100000001B3))
    else:
        state = found.astype(np.uint64)
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(state ^ (state >> np.uint64(31)))


def fold_of(ids: ArrayLike) -> NDArray[np.int64]:
    """Put each hold-out example into fold 0 or 1 by the hash of its id.

    >>> sorted(set(fold_of(range(20)).tolist()))
    [0, 1]
    """
    return np.asarray(hash_ids(ids) >> np.uint64(63), dtype=np.int64)


def as_ids(ids: Any) -> Ids:
    """Read ids as an int64 or string vector, from a tensor, an array or a sequence.

    Raises:
        SgoifError: they are anything else, with what to pass instead.

    >>> as_ids(["a.png", "b.png"]).tolist()
    ['a.png', 'b.png']
    """
    if hasattr(ids, "detach"):
        ids = ids.detach().cpu()
    try:
        found = np.asarray(ids)
    except Exception as error:  # ragged lists, dtypes that numpy does not know
        raise SgoifError(f"ids must be integers or strings, one per example; these cannot be read: {error}") from error
    if found.ndim != 1:
        hint = "pass ids[:, 0]" if found.ndim == 2 and found.shape[1] == 1 else "pass one id per example"
        raise SgoifError(f"ids must be a vector [B], got shape {found.shape}; {hint}.")
    if len(found) == 0:
        return np.empty(0, dtype=np.int64)
    if found.dtype.kind == "O":  # an object array, as data frames give them
        _refuse_items(found.tolist())
        found = np.asarray(found.tolist())
    elif isinstance(ids, list | tuple) and found.dtype.kind not in "iu":
        _refuse_items(ids)
    kind = found.dtype.kind
    if kind == "u" and found.max() > np.iinfo(np.int64).max:
        raise SgoifError(_TOO_LARGE.format(found.max()))
    if kind in "iu":
        return found.astype(np.int64)
    if kind == "U" and found.ndim == 1:
        return found
    raise SgoifError(f"ids must be integers or strings, got {found.dtype}; {_CURES.get(kind, _CONVERT)}.")


_TOO_LARGE = "integer ids must fit into 64 signed bits, got {}; pass them as strings."
_CONVERT = "convert them, for example with str()"
_CURES = {
    "f": "pass them as integers (ids.long()), or as strings",
    "b": "a mask is no id: pass the examples' positions in the dataset",
    "S": "decode bytes to strings: [i.decode() for i in ids]",
}


def _refuse_items(items: Sequence[Any]) -> None:
    """Raise for items that numpy would change on the way: mixed kinds, whole numbers as floats, NULs at the end."""
    is_whole = [isinstance(item, int | np.integer) and not isinstance(item, bool) for item in items]
    largest = max((item for item, whole in zip(items, is_whole, strict=True) if whole), key=abs, default=0)
    if not -(2**63) <= int(largest) < 2**63:
        raise SgoifError(_TOO_LARGE.format(largest))
    is_text = [isinstance(item, str) for item in items]
    if not all(is_text) and all(text or whole for text, whole in zip(is_text, is_whole, strict=True)):
        raise SgoifError("ids must be all integers or all strings, got both in one step; keep the ids to one type.")
    for item, text in zip(items, is_text, strict=True):
        if text and item.endswith("\0"):
            raise SgoifError(f"ids must not end in a NUL character, got {item!r}: numpy drops it. Remove it.")
        if item is None or (not text and isinstance(item, tuple | list | dict | set)):
            raise SgoifError(f"ids must be integers or strings, got {item!r}; {_CONVERT}.")
