"""What a scan works on: examples that have a label and can be read, as pictures or embeddings, and which are held out.

Copies of training examples are taken out of the hold-out: an anchor that the model has learnt by heart says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sgoif.backbones import Encoder, load_encoder
from sgoif.errors import SgoifError
from sgoif.evidence import EMBEDDINGS_NEARLY_SAME, PICTURES_NEARLY_SAME, Sketches, picture_sketch
from sgoif.findings import find_duplicates
from sgoif.pictures.decode import PictureError, decode, square
from sgoif.pictures.statistics import measure_pictures
from sgoif.scanning import Progress
from sgoif.scanning.embeddings import ScanEmbeddings, cache_beside, embed_pictures, embed_texts, sketch_rows
from sgoif.scanning.features import read_features
from sgoif.scanning.holdout import choose_holdout, find_reasons, read_verified
from sgoif.sources.labelled import Source
from sgoif.tables import MemoryTables

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "ScanExamples",
    "choose_examples",
    "read_embeddings",
    "read_pictures",
    "read_text_embeddings",
    "take_labelled",
]

_SMALL = 40  # pixels; larger pictures are scaled to twice this side's network


@dataclass(frozen=True, slots=True)
class ScanExamples:
    """The examples of a scan."""

    ids: NDArray[Any]
    labels: NDArray[np.int64]  # verified where a person did
    positions: NDArray[np.int64]  # in the source
    held: NDArray[np.bool_]
    verified: NDArray[np.bool_]  # whose label a person has checked; all of them are held out
    sketches: Sketches | None = None
    unreadable: tuple[tuple[str, str], ...] = ()  # ids of pictures that could not be read, and why
    copies: pa.Table | None = None  # pairs of copies, a table as `Run.duplicates` gives it
    statistics: Mapping[str, NDArray[Any]] | None = None  # of pictures, see `measure_pictures`; each [N]

    @property
    def is_trusted(self) -> bool:
        """Whether the whole hold-out is verified."""
        return bool(self.verified[self.held].all())

    def readable(self, reasons: Sequence[str]) -> ScanExamples:
        """Leave out pictures that have a reason why they could not be read, and remember them."""
        kept = np.array([not reason for reason in reasons], dtype=bool)
        broken = tuple((str(self.ids[i]), reasons[i]) for i in np.flatnonzero(~kept).tolist())
        return replace(self.only(kept), unreadable=self.unreadable + broken)

    def only(self, kept: NDArray[np.bool_]) -> ScanExamples:
        """Leave out all others."""
        parts = {name: getattr(self, name)[kept] for name in ("ids", "labels", "positions", "held", "verified")}
        measured = self.statistics
        kept_statistics = None if measured is None else {name: values[kept] for name, values in measured.items()}
        return replace(self, **parts, statistics=kept_statistics)

    def add_sketches(self, words: NDArray[np.int64], nearly_same: int) -> ScanExamples:
        """Keep sketches by which copies are found, and give hold-out examples that have one back to the training.

        Verified ones stay: a person has looked at them. Where a class would lose half of its hold-out, all stay: then
        sketches do not tell its examples apart.
        """
        kept = Sketches(nearly_same)
        kept.add(self.ids, words)
        import pyarrow as pa

        pairs = self._find_copies(kept)
        copies = pairs
        for end in ("id", "other_id"):
            named = pa.array(self.ids[pairs[end].to_numpy().astype(np.int64)].astype(str))
            copies = copies.set_column(copies.column_names.index(end), end, named)
        found = replace(self, sketches=kept, copies=copies)
        if not self.held.any() or self.held.all():
            return found
        without_copies = self.held.copy()
        across = pairs.filter(pairs["is_across_holdout"])
        for end in ("id", "other_id"):
            without_copies[across[end].to_numpy().astype(np.int64)] = False
        count = self.labels.max() + 1
        before, after = (np.bincount(self.labels[side], minlength=count) for side in (self.held, without_copies))
        are_told_apart = (2 * after >= before).all()
        return replace(found, held=without_copies | self.verified) if are_told_apart else found

    def _find_copies(self, sketches: Sketches) -> pa.Table:
        """Pairs of copies by position."""
        tables = {
            name: {"id": np.flatnonzero(side), "given_label": self.labels[side], **sketches.columns(self.ids[side])}
            for name, side in (("examples", ~self.held), ("holdout", self.held))
        }
        return find_duplicates(MemoryTables(tables).sql, max_bits=sketches.nearly_same)


def choose_examples(source: Source, verified: str | Path | None) -> ScanExamples:
    """Take the examples that have a label, and hold some of each class out, besides those that were verified.

    Which are held out does not depend on what was verified, so that a person's work on the hold-out of one scan serves
    the next.

    Raises:
        SgoifError: There are too few examples, or the verified ones are others.
    """
    positions = np.flatnonzero(source.labels >= 0)
    ids, labels = np.asarray(source.ids)[positions], source.labels[positions].copy()
    num_classes = len(source.class_names)
    find_reasons(labels, num_classes)  # refuses sets that are too small, before anything is read
    held, is_verified = choose_holdout(ids, labels, num_classes), np.zeros(len(ids), bool)
    if verified is None:
        return ScanExamples(ids, labels, positions, held, is_verified)
    checked = read_verified(verified, list(ids), source.class_names)
    if not checked:
        raise SgoifError(f"'{verified}' verifies none of these examples; their ids look like {str(ids[0])[:80]!r}.")
    is_verified[list(checked)] = True
    labels[list(checked)] = list(checked.values())
    return ScanExamples(ids, labels, positions, held | is_verified, is_verified)


def take_labelled(source: Source) -> ScanExamples:
    """Take the examples that have a label, and hold none of them out."""
    positions = np.flatnonzero(source.labels >= 0)
    none = np.zeros(len(positions), bool)
    return ScanExamples(np.asarray(source.ids)[positions], source.labels[positions].copy(), positions, none, none)


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


def read_pictures(source: Source, found: ScanExamples, progress: Progress) -> tuple[NDArray[np.uint8], ScanExamples]:
    """Decode all pictures, small: 32 pixels where they are about that size, else 64.

    Raises:
        SgoifError: None of them could be read.
    """
    first = [_size(item) for item in source.encoded(found.positions[:64])]
    sizes = [size for size in first if size]
    side = 32 if sizes and np.median(sizes) <= _SMALL else 64
    reasons, shapes = [""] * len(found.ids), np.ones((len(found.ids), 2), np.int64)
    pictures = np.zeros((len(found.ids), side, side, 3), np.uint8)
    for number, item in enumerate(source.encoded(found.positions)):
        try:
            decoded = decode(item)
            pictures[number], shapes[number] = square(decoded, side), decoded.size
        except PictureError as error:
            reasons[number] = str(error)
        if number % 256 == 255 or number + 1 == len(reasons):
            progress("reading pictures", number + 1, len(reasons))
    kept = np.array([not reason for reason in reasons], dtype=bool)
    if not kept.any():
        raise SgoifError(f"none of {len(kept):,} pictures could be read; {found.ids[0]}: {reasons[0]}.")
    found = replace(found, statistics=measure_pictures(pictures, shapes))
    pictures = pictures[kept]
    words = [picture_sketch(pictures[i : i + 2048]) for i in range(0, len(pictures), 2048)]
    return pictures, found.readable(reasons).add_sketches(np.concatenate(words), PICTURES_NEARLY_SAME)


def _size(item: bytes | Path | PictureError) -> int:
    try:
        return min(decode(item).size)
    except PictureError:
        return 0
