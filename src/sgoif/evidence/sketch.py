"""Sketches: 256 bits per example that differ in few places where two examples are nearly the same.

Two kinds, each compared only with its own: :func:`picture_sketch` of a small picture, which survives scaling,
re-encoding and small changes of brightness, and :func:`sign_sketch` of any embedding. A sketch is four words of 64 bits
and says nothing about the example to anyone who does not have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sgoif.errors import SgoifError
from sgoif.evidence.ids import IdIndex

__all__ = [
    "EMBEDDINGS_NEARLY_SAME",
    "PICTURES_NEARLY_SAME",
    "SKETCH_BITS",
    "SKETCH_COLUMNS",
    "Sketches",
    "picture_sketch",
    "sign_sketch",
]

SKETCH_COLUMNS = tuple(f"sketch_{i}" for i in range(4))
SKETCH_BITS = 64 * len(SKETCH_COLUMNS)

# Bits of 256 that may differ. On 50,000 CIFAR-10 pictures: 98% of those re-encoded as JPEG of quality 75, 99.9% of the
# scaled, brightened or dimmed ones are within 25 of their original; of the 297 pairs of other pictures that the whole
# test lets through, 58 were looked at and all of them are copies.
PICTURES_NEARLY_SAME = 25
# Embeddings say what a picture shows, and two dogs on a lawn are no copies: they must lie within 6 degrees, which is
# to say that the same picture was embedded twice. Nearly same pictures are 15-76 bits apart (EfficientNet-Lite0).
EMBEDDINGS_NEARLY_SAME = 8

Words = NDArray[np.int64]

_ROWS, _COLUMNS = 12, 16  # of brightness steps: 192 bits
_SHADES = np.array([32, 80, 128, 176, 224])  # 2 x 2 quarters x 3 colours x 5 steps: 60 bits


class Sketches:
    """Sketches by id.

    Args:
        nearly_same: how many bits may differ between two that are nearly the same.

    >>> kept = Sketches(PICTURES_NEARLY_SAME)
    >>> kept.add(["a", "b"], np.array([[1, 2, 3, 4], [5, 6, 7, 8]]))
    >>> {name: column.tolist() for name, column in kept.columns(["b"]).items()}
    {'sketch_0': [5], 'sketch_1': [6], 'sketch_2': [7], 'sketch_3': [8]}
    """

    def __init__(self, nearly_same: int) -> None:
        self.nearly_same = nearly_same
        self._index = IdIndex()
        self._words = np.zeros((0, len(SKETCH_COLUMNS)), np.int64)

    def __len__(self) -> int:
        return len(self._index)

    def add(self, ids: NDArray[Any] | Sequence[Any], words: ArrayLike) -> None:
        """Keep the sketches of some examples; a later one takes the place of an earlier."""
        rows = self._index.add(ids)
        if len(self._index) > len(self._words):
            grown = np.zeros((max(len(self._index), 2 * len(self._words)), self._words.shape[1]), np.int64)
            grown[: len(self._words)] = self._words
            self._words = grown
        self._words[rows] = words

    def columns(self, ids: NDArray[Any] | Sequence[Any]) -> dict[str, Words]:
        """One column per word, in the order of ``ids``.

        Raises:
            SgoifError: Some of them have no sketch.
        """
        rows = self._index.rows(ids)
        if (rows < 0).any():
            raise SgoifError(f"{int((rows < 0).sum())} of {len(rows)} examples have no sketch.")
        return {name: self._words[rows, i] for i, name in enumerate(SKETCH_COLUMNS)}


def picture_sketch(pictures: NDArray[np.uint8]) -> Words:
    """Sketch pictures ``[N, S, S, 3]``: where brightness rises from left to right, and the colours of the quarters.

    The colours keep plain pictures apart, which have no steps of brightness at all.

    >>> plain = np.broadcast_to(np.array([60, 240], np.uint8)[:, None, None, None], (2, 32, 32, 3))
    >>> [f"{word:x}" for word in picture_sketch(plain)[:, 3].tolist()]
    ['84210842108421', 'fffffffffffffff']
    """
    light = pictures.astype(np.float32) @ np.array([0.299, 0.587, 0.114], np.float32)
    small = _shrunk(light[..., None], _ROWS, _COLUMNS + 1)[..., 0]
    rises = (np.diff(small, axis=2) > 1.0).reshape(len(pictures), -1)  # less than a grey level is noise
    quarters = _shrunk(pictures.astype(np.float32), 2, 2).reshape(len(pictures), -1, 1)
    shades = (quarters > _SHADES).reshape(len(pictures), -1)
    return _packed(np.concatenate([rises, shades], 1))


def sign_sketch(rows: NDArray[np.floating[Any]], seed: int = 0) -> Words:
    """Sketch embeddings ``[N, D]``: signs along 256 random directions, after the mean of all is taken off.

    Two at an angle ``a`` differ in ``256 a / π`` bits on average.
    """
    directions = np.random.default_rng(seed).standard_normal((rows.shape[1], SKETCH_BITS)).astype(np.float32)
    mean = rows.mean(0, dtype=np.float64).astype(np.float32)
    parts = [(rows[i : i + 8192].astype(np.float32) - mean) @ directions > 0 for i in range(0, len(rows), 8192)]
    return _packed(np.concatenate(parts)) if parts else np.zeros((0, len(SKETCH_COLUMNS)), np.int64)


def _shrunk(pictures: NDArray[np.float32], height: int, width: int) -> NDArray[np.float32]:
    """Average over cells of equal size, ``[N, H, W, K]`` to ``[N, height, width, K]``; cells may share a pixel."""
    summed = np.einsum("ay,nyxk->naxk", _cells(pictures.shape[1], height), pictures, optimize=True)
    return np.asarray(np.einsum("bx,naxk->nabk", _cells(pictures.shape[2], width), summed, optimize=True))


def _cells(size: int, count: int) -> NDArray[np.float32]:
    """How much of each pixel lies in each cell, ``[count, size]``, rows sum to one."""
    edges = np.linspace(0, size, count + 1)
    pixel = np.arange(size)
    overlap = np.minimum(pixel + 1, edges[1:, None]) - np.maximum(pixel, edges[:-1, None])
    weights = np.clip(overlap, 0, None)
    return np.asarray(weights / weights.sum(1, keepdims=True), dtype=np.float32)


def _packed(bits: NDArray[np.bool_]) -> Words:
    padded = np.zeros((len(bits), SKETCH_BITS), bool)
    padded[:, : bits.shape[1]] = bits
    return np.packbits(padded, axis=1, bitorder="little").view("<i8").astype(np.int64)
