"""What a scan works on: examples that have a label and can be read, and copies among them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sgoif.backbones import Encoder, load_encoder
from sgoif.errors import SgoifError
from sgoif.evidence import EMBEDDINGS_NEARLY_SAME, Sketches
from sgoif.findings import find_duplicates
from sgoif.scanning import Progress
from sgoif.scanning.embeddings import ScanEmbeddings, cache_beside, embed_pictures, embed_texts, sketch_rows
from sgoif.scanning.features import read_features
from sgoif.scanning.unjudged import find_reasons
from sgoif.scanning.verified import read_verified
from sgoif.sources.labelled import Source
from sgoif.tables import MemoryTables

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "ScanExamples",
    "choose_examples",
    "read_embeddings",
    "read_text_embeddings",
    "take_labelled",
]


@dataclass(frozen=True, slots=True)
class ScanExamples:
    """The examples of a scan."""

    ids: NDArray[Any]
    labels: NDArray[np.int64]  # verified where a person did
    positions: NDArray[np.int64]  # in the source
    verified: NDArray[np.bool_]  # whose label a person has checked
    sketches: Sketches | None = None
    unreadable: tuple[tuple[str, str], ...] = ()  # ids of pictures that could not be read, and why
    copies: pa.Table | None = None  # pairs of copies, a table as `Run.duplicates` gives it
    statistics: Mapping[str, NDArray[Any]] | None = None  # of pictures, see `measure_pictures`; each [N]

    def readable(self, reasons: Sequence[str]) -> ScanExamples:
        """Leave out pictures that have a reason why they could not be read, and remember them."""
        kept = np.array([not reason for reason in reasons], dtype=bool)
        broken = tuple((str(self.ids[i]), reasons[i]) for i in np.flatnonzero(~kept).tolist())
        return replace(self.only(kept), unreadable=self.unreadable + broken)

    def only(self, kept: NDArray[np.bool_]) -> ScanExamples:
        """Leave out all others."""
        parts = {name: getattr(self, name)[kept] for name in ("ids", "labels", "positions", "verified")}
        measured = self.statistics
        kept_statistics = None if measured is None else {name: values[kept] for name, values in measured.items()}
        return replace(self, **parts, statistics=kept_statistics)

    def add_sketches(self, words: NDArray[np.int64], nearly_same: int) -> ScanExamples:
        """Keep sketches by which copies are found, and find them."""
        kept = Sketches(nearly_same)
        kept.add(self.ids, words)
        table = {"id": self.ids, "given_label": self.labels, **kept.columns(self.ids)}
        copies = find_duplicates(MemoryTables({"examples": table}).sql, max_bits=nearly_same, has_holdout=False)
        return replace(self, sketches=kept, copies=copies)


def choose_examples(source: Source, verified: str | Path | None) -> ScanExamples:
    """Take the examples that have a label, those that a person has checked with the label that they found.

    Raises:
        SgoifError: There are too few examples, or the verified ones are others.
    """
    positions = np.flatnonzero(source.labels >= 0)
    ids, labels = np.asarray(source.ids)[positions], source.labels[positions].copy()
    find_reasons(labels, len(source.class_names))  # refuses sets that are too small, before anything is read
    is_verified = np.zeros(len(ids), bool)
    if verified is None:
        return ScanExamples(ids, labels, positions, is_verified)
    checked = read_verified(verified, list(ids), source.class_names)
    if not checked:
        raise SgoifError(f"'{verified}' verifies none of these examples; their ids look like {str(ids[0])[:80]!r}.")
    is_verified[list(checked)] = True
    labels[list(checked)] = list(checked.values())
    return ScanExamples(ids, labels, positions, is_verified)


def take_labelled(source: Source) -> ScanExamples:
    """Take the examples that have a label of another kind than one class."""
    positions = np.flatnonzero(source.labels >= 0)
    none = np.zeros(len(positions), bool)
    return ScanExamples(np.asarray(source.ids)[positions], source.labels[positions].copy(), positions, none)


def read_embeddings(
    source: Source,
    found: ScanExamples,
    features: str | Path | None,
    feature_ids: str | Path | None,
    backbone: str | None,
    out: str | None,
    progress: Progress,
    *,
    weights: str | Path | None = None,
    device: str = "cpu",
) -> tuple[NDArray[np.float32], ScanExamples]:
    """Read embeddings from a file, or make them with a frozen backbone and keep them beside the run."""
    if features is not None:
        if str(features).endswith(".npy") and feature_ids is None:  # one row for each, with a label or without
            rows = read_features(features, source.ids)[found.positions]
        else:
            rows = read_features(features, list(found.ids), feature_ids)
        return rows, found.add_sketches(sketch_rows(rows, found.ids), EMBEDDINGS_NEARLY_SAME)
    assert backbone is not None
    encoder = load_encoder(backbone, takes="pictures", weights=weights, device=device)
    made = embed_pictures(source, found.positions, encoder, cache=cache_beside(out), progress=progress)
    return _take_readable(made, found)


def read_text_embeddings(
    texts: Callable[[], Iterable[str | None]],
    found: ScanExamples,
    encoder: Encoder | None,
    *,
    files: Iterable[Path] | None = None,
    out: str | None = None,
    progress: Progress,
) -> tuple[NDArray[np.float32], ScanExamples, int]:
    """Embed texts, one for each of the examples found, with a frozen backbone or without one.

    Args:
        texts: of ``found.ids``, in their order; called more than once.
        found: the examples.
        encoder: None for features without a model.
        files: that the texts come from; None hashes the texts themselves.
        out: the run, beside which embeddings are kept.
        progress: told what is done.

    Returns:
        Rows of the texts that could be read, these examples, and of how many texts only the beginning was read.
    """
    made = embed_texts(found.ids, texts, encoder, files=files, cache=cache_beside(out), progress=progress)
    return *_take_readable(made, found), made.num_truncated


def _take_readable(made: ScanEmbeddings, found: ScanExamples) -> tuple[NDArray[np.float32], ScanExamples]:
    kept = np.array([not reason for reason in made.reasons], dtype=bool)
    rows = made.rows if kept.all() else made.rows[kept]
    found = replace(found, statistics=made.statistics).readable(made.reasons)
    return rows, found.add_sketches(made.sketches[kept], made.nearly_same)
