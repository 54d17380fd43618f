"""Embeddings of a scan's examples: made once, by a backbone or for texts without one, and kept beside the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sgoif.backbones import Encoder
from sgoif.backbones.driver import Items, embed_items, stamp_files, stamp_texts
from sgoif.evidence import EMBEDDINGS_NEARLY_SAME, PICTURES_NEARLY_SAME, hash_ids, sign_sketch
from sgoif.pictures.statistics import STATISTICS
from sgoif.scanning import Progress
from sgoif.scanning.standardise import clamp
from sgoif.sources.labelled import FolderSource, Source, TableSource

__all__ = ["ScanEmbeddings", "cache_beside", "embed_pictures", "embed_texts", "sketch_rows"]

Floats = NDArray[np.float32]


class ScanEmbeddings(NamedTuple):
    """Embedded examples, with sketches by which copies are found."""

    rows: Floats  # [N, D]; zero where an example could not be read
    reasons: list[str]  # why an example could not be read; empty where it could
    sketches: NDArray[np.int64]  # [N, 4]
    nearly_same: int  # bits in which sketches of copies may differ
    num_truncated: int = 0  # texts of which the model read only the beginning
    statistics: Mapping[str, NDArray[Any]] | None = None  # of pictures, each [N]


def embed_pictures(
    source: Source,
    positions: NDArray[np.int64],
    encoder: Encoder,
    *,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> ScanEmbeddings:
    """Embed some pictures of a source.

    Raises:
        SgoifError: No picture could be read, or the backbone raises or gives no embeddings.
    """
    ids = [source.ids[int(i)] for i in positions]
    items = Items("pictures", ids, lambda: source.encoded(positions), stamp_files(_files(source, ids)))
    found = embed_items(items, encoder, cache=cache, progress=progress)
    assert found.sketches is not None and found.statistics is not None
    measured = dict(zip(STATISTICS, found.statistics.T))
    return ScanEmbeddings(found.rows, found.reasons, found.sketches, PICTURES_NEARLY_SAME, statistics=measured)


def embed_texts(
    ids: Sequence[Any] | NDArray[Any],
    texts: Callable[[], Iterable[str | None]],
    encoder: Encoder | None,
    *,
    files: Iterable[Path] | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> ScanEmbeddings:
    """Embed texts.

    Args:
        ids: one per text.
        texts: gives all texts in the order of the ids; called more than once.
        encoder: None for features without a model, see :func:`sgoif.backbones.hashed_text_features`.
        files: that the texts come from; without, the texts themselves tell whether kept embeddings still serve.
        cache: a folder for the result.
        progress: called with the stage, what is done, and the total.

    Raises:
        SgoifError: No text could be read, or the backbone raises or gives no embeddings.
    """
    stamp = "" if cache is None else stamp_texts(texts()) if files is None else stamp_files(files)
    found = embed_items(Items("texts", ids, texts, stamp), encoder, cache=cache, progress=progress)
    words = sketch_rows(found.rows, np.asarray(ids), np.array([not reason for reason in found.reasons], bool))
    return ScanEmbeddings(found.rows, found.reasons, words, EMBEDDINGS_NEARLY_SAME, found.num_truncated)


def cache_beside(out: str | None) -> Path | None:
    """The folder of kept embeddings beside a run; None where the run is not on this machine's disk."""
    return Path(out).parent / ".sgoif-cache" if out is not None and "://" not in out else None


def sketch_rows(rows: NDArray[Any], ids: NDArray[Any], is_known: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
    """Sketch embeddings; one that is not finite or not known gets a sketch of its own, and passes for no copy."""
    is_good = np.isfinite(rows).all(1) & (True if is_known is None else is_known)
    own = hash_ids(ids).view(np.int64)
    words = np.stack([own, ~own, own, ~own], 1)
    if is_good.any():  # clamped: signs are taken from the mean, which one overflow would own
        words[is_good] = sign_sketch(clamp(rows[is_good]))
    return words


def _files(source: Source, ids: Sequence[str]) -> Iterator[Path]:
    """The files whose change makes kept embeddings worthless."""
    if isinstance(source, FolderSource):
        return (source.root / id for id in ids)
    return iter(source.files if isinstance(source, TableSource) else ())
