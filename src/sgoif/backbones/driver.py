"""Embeds pictures or texts once, in batches, and keeps the result in a file beside the run.

What cannot be read is counted with its reason and has a row of zeros. A kept result serves as long as neither the data
nor the encoder change.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sgoif.backbones.encoders import TextEncoder
from sgoif.backbones.hashed import HASHED_VERSION, hashed_text_features
from sgoif.backbones.names import Kind
from sgoif.errors import SgoifError
from sgoif.evidence import SKETCH_COLUMNS, picture_sketch
from sgoif.files.tables import replacing
from sgoif.pictures.decode import PictureError, decode, square
from sgoif.pictures.statistics import STATISTICS, measure_pictures

if TYPE_CHECKING:
    from sgoif.backbones import Encoder

__all__ = ["Embedded", "Items", "embed_items", "stamp_files", "stamp_texts"]

Floats = NDArray[np.float32]
Item = bytes | Path | PictureError | str | None
Progress = Callable[[str, int, int], None]

_log = logging.getLogger(__name__)

_FORMAT = 5  # of kept files
_TEXTS = 1024  # at once; encoders put those of a length together
_PIXELS = 1 << 26  # decoded pixels at once: 200 MB, which large photographs reach before a batch is full
_SKETCHED = 64  # side in pixels of the pictures that sketches are taken of


@dataclass(frozen=True, slots=True)
class Items:
    """Pictures or texts to embed."""

    kind: Kind
    ids: Sequence[Any] | NDArray[Any]
    read: Callable[[], Iterable[Item]]  # encoded pictures or texts in the order of the ids; may be called again
    stamp: str  # changes when the data does, see `stamp_files` and `stamp_texts`


@dataclass(frozen=True, slots=True)
class Embedded:
    """Embedded pictures or texts."""

    rows: Floats  # [N, D]; zero where one could not be read
    reasons: list[str]  # why one could not be read; empty where it could
    sketches: NDArray[np.int64] | None  # [N, 4], of pictures; texts have none of their own
    statistics: NDArray[np.float32] | None = None  # [N, 9], of pictures, see `sgoif.pictures.statistics`
    num_truncated: int = 0  # texts of which the model read only the beginning


def embed_items(
    items: Items,
    encoder: Encoder | None,
    *,
    cache: Path | None = None,
    batch: int = 64,
    progress: Progress | None = None,
) -> Embedded:
    """Embed all items, or take the result that was kept.

    Args:
        items: what to embed.
        encoder: None for texts without a model, see :func:`sgoif.backbones.hashed_text_features`.
        cache: a folder for the result; None keeps nothing.
        batch: pictures at once; fewer where they are large.
        progress: called with the stage, what is done, and the total.

    Raises:
        SgoifError: Nothing could be read, the encoder takes another kind of items, raises or gives no embeddings.
    """
    takes = "texts" if encoder is None else encoder.takes
    if takes != items.kind:
        raise SgoifError(f"the backbone {getattr(encoder, 'name', None)!r} embeds {takes}, but was given {items.kind}.")
    file = None if cache is None else cache / f"embeddings-{_FORMAT}-{_key(items, encoder)}.npz"
    kept = None if file is None else _load(file, len(items.ids), items.kind)
    if kept is not None:
        return kept
    found = _embed_hashed(items, progress) if encoder is None else _embed(items, encoder, batch, progress)
    if file is not None:
        _keep(file, found)
    return found


def _embed(items: Items, encoder: Encoder, batch: int, progress: Progress | None) -> Embedded:
    made = _Rows(len(items.ids), np.zeros((len(items.ids), len(SKETCH_COLUMNS)), np.int64))
    before = encoder.num_truncated if isinstance(encoder, TextEncoder) else 0
    for number, values in _batches(items, made.reasons, batch if items.kind == "pictures" else _TEXTS):
        if values:
            positions = [position for position, _ in values]
            made.put(positions, encoder.embed([value for _, value in values]), encoder.name)
            if items.kind == "pictures":
                made.look_at(positions, [value for _, value in values])
        if progress is not None:
            progress(f"embedding {items.kind}", number, len(items.ids))
    if made.rows is None:
        raise SgoifError(f"none of {len(items.ids):,} {items.kind} could be read; {_first(items, made.reasons)}.")
    after = encoder.num_truncated if isinstance(encoder, TextEncoder) else 0
    if items.kind == "texts":
        return Embedded(made.rows, made.reasons, None, None, after - before)
    return Embedded(made.rows, made.reasons, made.sketches, made.statistics)


@dataclass(slots=True)
class _Rows:
    """Rows as they come: the width is known with the first of them."""

    count: int
    sketches: NDArray[np.int64]
    rows: Floats | None = None
    reasons: list[str] = field(init=False)
    statistics: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.reasons = [""] * self.count
        self.statistics = np.full((self.count, len(STATISTICS)), np.nan, np.float32)

    def look_at(self, positions: list[int], pictures: list[Any]) -> None:
        """Sketch and measure pictures."""
        small = np.stack([square(picture, _SKETCHED) for picture in pictures])
        self.sketches[positions] = picture_sketch(small)
        measured = measure_pictures(small, np.array([picture.size for picture in pictures]))
        self.statistics[positions] = np.stack([measured[name] for name in STATISTICS], 1)

    def put(self, positions: list[int], found: Floats, name: str) -> None:
        if self.rows is None:
            self.rows = np.zeros((self.count, found.shape[1]), np.float32)
        if found.shape[1] != self.rows.shape[1]:
            raise SgoifError(
                f"the backbone {name!r} returned rows of {found.shape[1]} numbers after rows of {self.rows.shape[1]}; "
                "all embeddings must have one length."
            )
        self.rows[positions] = found


def _batches(items: Items, reasons: list[str], size: int) -> Iterator[tuple[int, list[tuple[int, Any]]]]:
    """Give what can be read, with positions, in batches, and how many items were looked at; fill in reasons."""
    values: list[tuple[int, Any]] = []
    number = pixels = 0
    for number, item in enumerate(items.read(), 1):
        if number > len(reasons):
            break
        value, reason = _read_picture(item) if items.kind == "pictures" else _read_text(item)
        reasons[number - 1] = reason
        if not reason:
            values.append((number - 1, value))
            pixels += 0 if isinstance(value, str) else value.width * value.height
        if len(values) == size or pixels >= _PIXELS:
            yield number, values
            values, pixels = [], 0
    if number != len(reasons):
        came = f"{number:,}" if number < len(reasons) else "more"
        raise SgoifError(f"{len(reasons):,} ids were given, but {came} {items.kind} came; pass one id for each.")
    yield number, values


def _embed_hashed(items: Items, progress: Progress | None) -> Embedded:
    reasons = [""] * len(items.ids)

    def texts() -> Iterator[str]:
        for number, item in enumerate(items.read()):
            text, reason = _read_text(item)
            if number < len(reasons):
                reasons[number] = reason
            yield "" if reason else text

    rows = hashed_text_features(texts, len(items.ids), progress=progress)
    if all(reasons):
        raise SgoifError(f"none of {len(reasons):,} texts could be read; {_first(items, reasons)}.")
    return Embedded(rows, reasons, None)


def _first(items: Items, reasons: list[str]) -> str:
    return f"{items.ids[0]}: {reasons[0]}" if reasons else "there are none"


def _read_picture(item: Any) -> tuple[Any, str]:
    try:
        return decode(item), ""
    except PictureError as error:
        return None, str(error) or "no picture"


def _read_text(item: Any) -> tuple[str, str]:
    """A text that tokenizers take: half of a character pair, which UTF-8 does not have, is replaced."""
    if item is None:
        return "", "there is no text"
    if not isinstance(item, str):
        return "", f"it is a {type(item).__name__}, not a text"
    text = item.encode("utf-8", "replace").decode("utf-8")
    return (text, "") if text.strip() else ("", "the text is empty")


def _key(items: Items, encoder: Encoder | None) -> str:
    """Name a result by the encoder, the data and its ids."""
    digest = hashlib.sha256()
    for part in (items.kind, HASHED_VERSION if encoder is None else encoder.fingerprint, items.stamp):
        digest.update(f"{part}\0".encode())
    _add_texts(digest, (str(id) for id in items.ids))
    return digest.hexdigest()[:24]


def _load(file: Path, count: int, kind: Kind) -> Embedded | None:
    """Read a kept result; a damaged one counts as none."""
    if not file.is_file():
        return None
    try:
        with np.load(file, allow_pickle=False) as kept:
            rows, broken = kept["rows"], kept["unreadable"].astype(np.int64)
            sketches, statistics = (kept[name] if kind == "pictures" else None for name in ("sketches", "statistics"))
            why, num_truncated = kept["reasons"].tolist(), int(kept["num_truncated"])
        if rows.dtype != np.float32 or rows.ndim != 2 or len(rows) != count or len(why) != len(broken):
            raise ValueError(f"its rows are {rows.dtype} {list(rows.shape)}")
        reasons = [""] * count
        for position, reason in zip(broken.tolist(), why):
            reasons[position] = reason
        return Embedded(rows, reasons, sketches, statistics, num_truncated)
    except Exception as error:  # whatever a damaged file makes of its readers
        _log.warning("'%s' is damaged (%s: %s) and is computed again.", file, type(error).__name__, error)
        return None


def _keep(file: Path, found: Embedded) -> None:
    """Write a result so that it is there in full or not at all; without room for it the scan goes on."""
    broken = [position for position, reason in enumerate(found.reasons) if reason]
    arrays: dict[str, Any] = {
        "rows": found.rows,
        "unreadable": np.array(broken, np.int64),
        "reasons": np.array([found.reasons[position] for position in broken], dtype=str),
        "num_truncated": np.array(found.num_truncated),
    }
    if found.sketches is not None and found.statistics is not None:
        arrays |= {"sketches": found.sketches, "statistics": found.statistics}
    try:
        with replacing(file) as handle:
            np.savez(handle, **arrays)
    except OSError as error:
        _log.warning("the embeddings are not kept for the next scan: %s", error)


def stamp_files(files: Iterable[str | os.PathLike[str]]) -> str:
    """Hash sizes and times of files: another value when one of them was written again."""
    digest = hashlib.sha256()
    for file in files:
        try:
            found = os.stat(file)
            digest.update(f"{found.st_size} {found.st_mtime_ns}\n".encode())
        except OSError:
            digest.update(b"gone\n")
    return digest.hexdigest()


def stamp_texts(texts: Iterable[str | None]) -> str:
    """Hash texts that are in memory."""
    digest = hashlib.sha256()
    _add_texts(digest, texts)
    return digest.hexdigest()


def _add_texts(digest: Any, texts: Iterable[str | None]) -> None:
    for text in texts:
        data = b"" if text is None else str(text).encode("utf-8", "surrogatepass")
        digest.update(f"{-1 if text is None else len(data)} ".encode())
        digest.update(data)
