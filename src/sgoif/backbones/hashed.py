"""Text features without a model: hashed words and character sequences, weighted by tf-idf and reduced by an SVD.

Texts are read twice, in blocks: once for a sample on which weights and directions are fitted, once to be transformed.
So memory holds the result, the directions and one block, however many texts there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SgoifError

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

__all__ = ["HASHED_VERSION", "hashed_text_features"]

HASHED_VERSION = "hashed-1"  # raised when the same texts would give other features

Floats = NDArray[np.float32]
Progress = Callable[[str, int, int], None]

_BUCKETS = 1 << 18  # of words, and as many of character sequences
_COLUMNS = 1 << 17  # buckets that enter the SVD, the most frequent: its directions take 270 MB at 512 dimensions
_BLOCK_TEXTS, _BLOCK_CHARACTERS = 4096, 1 << 21


class _Weights(NamedTuple):
    """What a sample of texts teaches about buckets."""

    columns: NDArray[np.int64]  # buckets that count
    idf: Floats  # of these
    directions: Floats  # [columns, D]


def hashed_text_features(
    texts: Callable[[], Iterable[str]],
    count: int,
    *,
    dimensions: int = 512,
    max_sample: int = 50_000,
    seed: int = 0,
    progress: Progress | None = None,
) -> Floats:
    """Turn texts into features that a linear head can use, with scikit-learn alone; the same texts give the same rows.

    Args:
        texts: called twice; gives all texts in their order.
        count: how many there are.
        dimensions: at most so many; fewer where there are fewer texts.
        max_sample: texts on which weights and directions are fitted, drawn at random.
        seed: of the sample and of the SVD.
        progress: called with the stage, what is done, and the total.

    Returns:
        ``[count, D]``; rows have length 1. A text without a word, or with no word or character sequence that the sample
        has twice, has a row of zeros.

    Raises:
        SgoifError: ``texts`` gives another number of texts, or no two of them have anything in common.
    """
    chosen = np.random.default_rng(seed).permutation(count)[:max_sample]
    is_sampled = np.zeros(count, bool)
    is_sampled[chosen] = True
    fitted = _fit(_sample(texts, is_sampled), min(dimensions, len(chosen)), seed)
    rows = np.zeros((count, fitted.directions.shape[1]), np.float32)
    done = 0
    for block in _blocks(texts()):
        start, done = done, done + len(block)
        if done > count:
            break
        rows[start:done] = _unit(_transform(_hash(block), fitted) @ fitted.directions)
        if progress is not None:
            progress("computing text features", done, count)
    if done != count:
        came = f"{done:,}" if done < count else "more"
        raise SgoifError(f"count says {count:,} texts, but {came} came; pass their number.")
    return rows


def _sample(texts: Callable[[], Iterable[str]], is_sampled: NDArray[np.bool_]) -> csr_matrix:
    from scipy.sparse import vstack

    drawn = (text for text, is_in in zip(texts(), is_sampled.tolist()) if is_in)
    parts = [_hash(block) for block in _blocks(drawn)]
    if not parts:
        raise SgoifError("there are no texts to compute features of.")
    return vstack(parts, format="csr")


def _fit(counts: csr_matrix, dimensions: int, seed: int) -> _Weights:
    """Weigh the buckets that two texts of the sample share, and find the directions in which texts differ most."""
    from sklearn.utils.extmath import randomized_svd

    frequency = np.bincount(counts.indices, minlength=counts.shape[1])
    shared = np.flatnonzero(frequency >= min(2, counts.shape[0]))
    if not len(shared):
        raise SgoifError(
            f"no two of {counts.shape[0]:,} texts share a word or a character sequence; are they the right column?"
        )
    columns = np.sort(shared[np.argsort(-frequency[shared], kind="stable")[:_COLUMNS]])
    idf = (np.log((1 + counts.shape[0]) / (1 + frequency[columns])) + 1).astype(np.float32)
    plain = _Weights(columns, idf, np.zeros((len(columns), 0), np.float32))
    weighted = _transform(counts, plain)
    size = max(1, min(dimensions, *weighted.shape))
    _, _, found = randomized_svd(weighted, size, n_iter=2, random_state=seed)
    # Turned at random, so that scaling every feature to one deviation, as the scan does, keeps the distances between
    # texts and does not make the weakest directions as large as the strongest.
    turned, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((size, size)))
    return plain._replace(directions=np.ascontiguousarray(found.T @ turned, dtype=np.float32))


def _transform(counts: csr_matrix, fitted: _Weights) -> csr_matrix:
    """Weigh counts by tf-idf; words and character sequences have the same length in each row."""
    from scipy.sparse import hstack

    kept = counts[:, fitted.columns]
    kept.data = (1 + np.log(kept.data)) * fitted.idf[kept.indices]
    border = int(np.searchsorted(fitted.columns, _BUCKETS))
    return hstack([_scale_rows(kept[:, :border]), _scale_rows(kept[:, border:])], format="csr", dtype=np.float32)


def _scale_rows(part: csr_matrix) -> csr_matrix:
    from sklearn.preprocessing import normalize

    return normalize(part, copy=False)


def _hash(texts: list[str]) -> csr_matrix:
    """Count the words and pairs of words, and the character sequences of 3 to 5, of each text."""
    from scipy.sparse import hstack

    return hstack([vectorizer.transform(texts) for vectorizer in _vectorizers()], format="csr")


def _vectorizers() -> Iterator[Any]:
    from sklearn.feature_extraction.text import HashingVectorizer

    common = {"n_features": _BUCKETS, "norm": None, "alternate_sign": False, "dtype": np.float32}
    yield HashingVectorizer(ngram_range=(1, 2), token_pattern=r"(?u)\b\w+\b", **common)
    yield HashingVectorizer(analyzer="char_wb", ngram_range=(3, 5), **common)


def _blocks(texts: Iterable[str]) -> Iterator[list[str]]:
    """Group texts: few of long ones."""
    block: list[str] = []
    size = 0
    for text in texts:
        block.append(text)
        size += len(text)
        if len(block) == _BLOCK_TEXTS or size >= _BLOCK_CHARACTERS:
            yield block
            block, size = [], 0
    if block:
        yield block


def _unit(rows: NDArray[Any]) -> Floats:
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(length > 0, length, 1), dtype=np.float32)
