"""Sketches: 256 bits per example that differ in few places where two examples are nearly the same.

Each kind is compared only with its own: :func:`picture_sketch` of a small picture, which survives scaling, re-encoding
and small changes of brightness; :func:`sign_sketch` of any embedding; and *likeness*, signs of what a model being
watched sees (:mod:`sgoif.influence.likeness`). A sketch is four words of 64 bits and says nothing about the example to
anyone who does not have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sgoif.errors import SgoifError
from sgoif.evidence.ids import IdIndex, grow_rows

__all__ = [
    "EMBEDDINGS_NEARLY_SAME",
    "LIKENESS_COLUMNS",
    "LIKENESS_NEARLY_SAME",
    "PICTURES_NEARLY_SAME",
    "SKETCH_BITS",
    "SKETCH_COLUMNS",
    "LatestWords",
    "Sketches",
    "picture_sketch",
    "sign_sketch",
]

SKETCH_COLUMNS = tuple(f"sketch_{i}" for i in range(4))
LIKENESS_COLUMNS = tuple(f"likeness_{i}" for i in range(4))  # four zeros where there is none
SKETCH_BITS = 64 * len(SKETCH_COLUMNS)

# Bits of 256 that may differ. On 50,000 CIFAR-10 pictures: 98% of those re-encoded as JPEG of quality 75, 99.9% of the
# scaled, brightened or dimmed ones are within 25 of their original; of the 297 pairs of other pictures that the whole
# test lets through, 58 were looked at and all of them are copies.
PICTURES_NEARLY_SAME = 25
# Embeddings say what a picture shows, and two dogs on a lawn are no copies: they must lie within 6 degrees, which is
# to say that the same picture was embedded twice. Nearly same pictures are 15-76 bits apart (EfficientNet-Lite0).
EMBEDDINGS_NEARLY_SAME = 8
# The likeness of a finished model. Among 10,400 CIFAR-10 pictures, two small ResNets give all 200 exact copies the same
# sketch; within 12 bits are 3-6 of 100 re-encoded (JPEG 75) and 28-53 of 100 dimmed copies, and no other pair.
LIKENESS_NEARLY_SAME = 12

Words = NDArray[np.int64]

_ROWS, _COLUMNS = 12, 16  # of brightness steps: 192 bits
_SHADES = np.array([32, 80, 128, 176, 224])  # 2 x 2 quarters x 3 colours x 5 steps: 60 bits


class LatestWords:
    """The latest sketch of every row of an array; four zeros where there is none.

    Args:
        words: to begin with, ``[N, 4]``.

    >>> kept = LatestWords()
    >>> kept.keep(np.array([2, 0]), np.array([[1, 2, 3, 4], [5, 6, 7, 8]]))
    >>> kept.words(3).tolist()
    [[5, 6, 7, 8], [0, 0, 0, 0], [1, 2, 3, 4]]
    """

    def __init__(self, words: Words | None = None) -> None:
        self._words = np.zeros((0, len(SKETCH_COLUMNS)), np.int64) if words is None else words.copy()

    def keep(self, rows: NDArray[np.int64], words: ArrayLike) -> None:
        """Keep the sketches of some rows; a later one takes the place of an earlier."""
        if len(rows):
            self._words = grow_rows(self._words, int(rows.max()) + 1)
            self._words[rows] = words

    def words(self, num_rows: int) -> Words:
        """The first so many rows, ``[num_rows, 4]``."""
        self._words = grow_rows(self._words, num_rows)
        return self._words[:num_rows]


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
        self._latest = LatestWords()

    def __len__(self) -> int:
        return len(self._index)

    def add(self, ids: NDArray[Any] | Sequence[Any], words: ArrayLike) -> None:
        """Keep the sketches of some examples; a later one takes the place of an earlier."""
        self._latest.keep(self._index.add(ids), words)

    def columns(self, ids: NDArray[Any] | Sequence[Any]) -> dict[str, Words]:
        """One column per word, in the order of ``ids``.

        Raises:
            SgoifError: Some of them have no sketch.
        """
        rows = self._index.rows(ids)
        if (rows < 0).any():
            raise SgoifError(f"{int((rows < 0).sum())} of {len(rows)} examples have no sketch.")
        words = self._latest.words(len(self._index))[rows]
        return {name: words[:, i] for i, name in enumerate(SKETCH_COLUMNS)}


def picture_sketch(pictures: NDArray[np.uint8]) -> Words:
    """Sketch pictures ``[N, S, S, 3]``: where brightness rises from left to right, and the colours of the quarters.

    The colours keep plain pictures apart, which have no steps of brightness at all.

    >>> plain = np.broadcast_to(np.array([60, 240], np.uint8)[:, None, None, None], (2, 32, 32, 3))
    >>> [f"{word:x}" for word in picture_sketch(plain)[:, 3].tolist()]
    ['84210842108421', 'fffffffffffffff']
    """
    light = pictures.astype(np.float32) @ np.array([0.299, 0.587, 0.114], np.float32)
    small = _shrink(light[..., None], _ROWS, _COLUMNS + 1)[..., 0]
    rises = (np.diff(small, axis=2) > 1.0).reshape(len(pictures), -1)  # less than a grey level is noise
    quarters = _shrink(pictures.astype(np.float32), 2, 2).reshape(len(pictures), -1, 1)
    shades = (quarters > _SHADES).reshape(len(pictures), -1)
    return _pack(np.concatenate([rises, shades], 1))


def sign_sketch(rows: NDArray[np.floating[Any]], seed: int = 0) -> Words:
    """Sketch embeddings ``[N, D]``: signs along 256 random directions, after the mean of all is taken off.

    Two at an angle ``a`` differ in ``256 a / π`` bits on average.
    """
    directions = np.random.default_rng(seed).standard_normal((rows.shape[1], SKETCH_BITS)).astype(np.float32)
    mean = rows.mean(0, dtype=np.float64).astype(np.float32)
    parts = [(rows[i : i + 8192].astype(np.float32) - mean) @ directions > 0 for i in range(0, len(rows), 8192)]
    return _pack(np.concatenate(parts)) if parts else np.zeros((0, len(SKETCH_COLUMNS)), np.int64)


def _shrink(pictures: NDArray[np.float32], height: int, width: int) -> NDArray[np.float32]:
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


def _pack(bits: NDArray[np.bool_]) -> Words:
    padded = np.zeros((len(bits), SKETCH_BITS), bool)
    padded[:, : bits.shape[1]] = bits
    return np.packbits(padded, axis=1, bitorder="little").view("<i8").astype(np.int64)
