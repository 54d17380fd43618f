"""The user's ids as the store keeps them: int64 or text as given, and beside either a 64-bit hash to join by.

The hash is :func:`sgoif.evidence.hash_ids`, so folds, splits and buckets agree wherever they are made. Numpy holds
strings at the width of the longest, so that one id of 10 kB among a million short ones would take 40 GB: here they are
hashed in groups of like length, and kept by Arrow, which stores each at its own length.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sgoif.errors import StoreError
from sgoif.evidence import hash_ids
from sgoif.store.schema import IdKind

__all__ = ["arrow_ids", "check_kind", "kind_of_ids"]

_HASHED_AT_ONCE = 16 << 20  # bytes of fixed-width text
_NAMES = {"int": "integers", "string": "strings"}

Ids = NDArray[Any]


def kind_of_ids(ids: Ids) -> IdKind:
    """Tell whether ids are integers or strings.

    Raises:
        StoreError: They are neither, or a mixture, or do not fit into 64 signed bits.
    """
    kind = ids.dtype.kind
    if ids.ndim != 1:
        raise StoreError(f"ids are a vector, got shape {ids.shape}.")
    if kind == "O" and len(ids):
        if all(isinstance(item, str) for item in ids):
            return "string"
        if all(isinstance(item, int | np.integer) for item in ids):
            return kind_of_ids(np.asarray(ids.tolist()))
    if kind == "u" and len(ids) and int(ids.max()) > np.iinfo(np.int64).max:
        raise StoreError(f"integer ids must fit into 64 signed bits, got {ids.max()}; pass them as strings.")
    if kind in "iu":
        return "int"
    if kind in "UT":
        return "string"
    raise StoreError(f"ids are all integers or all strings, got {ids.dtype}; convert them, for example with str().")


def check_kind(found: IdKind, known: IdKind | None) -> None:
    """Refuse ids of a kind that differs from the run's."""
    if known is not None and found != known:
        raise StoreError(
            f"this run's ids are {_NAMES[known]}, but a block came with {_NAMES[found]}; keep the ids of a run to one "
            "type, or write to another folder."
        )


def arrow_ids(ids: Ids, kind: IdKind) -> tuple[pa.Array, NDArray[np.int64]]:
    r"""Return ids for Arrow, and their hashes.

    UTF-8 has no form for half of a surrogate pair, as in undecodable file names: it is written out as ``\udc80``.
    """
    if kind == "int":
        whole = np.ascontiguousarray(ids, dtype=np.int64)
        return pa.array(whole), hash_ids(whole).view(np.int64)
    texts = ids if ids.dtype.kind == "U" else np.array(ids.tolist(), dtype=object)
    try:
        column = pa.array(texts, pa.string())
        # Arrow ends fixed-width text at its first NUL
        is_whole = texts.dtype.kind != "U" or pc.sum(pc.utf8_length(column)).as_py() == np.char.str_len(texts).sum()
    except (pa.ArrowInvalid, UnicodeError):
        is_whole = False
    if not is_whole:
        plain = [text.encode("utf-8", "backslashreplace").decode() for text in texts.tolist()]
        texts, column = np.array(plain, dtype=object), pa.array(plain, pa.string())
    return column, _hash_texts(texts)


def _hash_texts(texts: Ids) -> NDArray[np.int64]:
    if texts.dtype.kind == "U" and texts.dtype.itemsize <= 1024:
        return hash_ids(texts).view(np.int64)
    lengths = (
        np.char.str_len(texts) if texts.dtype.kind == "U" else np.fromiter(map(len, texts), np.int64, count=len(texts))
    )
    widths = 1 << np.ceil(np.log2(np.maximum(lengths, 16))).astype(np.int64)
    hashes = np.empty(len(texts), np.int64)
    for width in np.unique(widths).tolist():
        rows = np.flatnonzero(widths == width)
        for part in np.array_split(rows, 1 + len(rows) * width * 4 // _HASHED_AT_ONCE):
            if len(part):
                hashes[part] = hash_ids(texts[part].astype(f"U{width}")).view(np.int64)
    return hashes
