"""The examples of a page, pictures, texts or rows: made small, and no more of them than are shown."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeGuard, get_args

from sgoif.errors import SgoifError
from sgoif.pictures import choose_side, content_hash, displayed, thumbnail
from sgoif.pictures.decode import PictureError
from sgoif.report.rows import ColumnUsage, describe_row, measure_columns
from sgoif.sources import Pictures
from sgoif.sources.written import is_written, written_hash

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Gallery", "Mode", "build_gallery", "content_hashes", "read_image"]

Mode = Literal["embed", "link", "none"]

_BYTES_PER_CARD = 40_000  # 500 cards stay under 25 MB with all that lies beside them
_LEAST_BYTES = 20_000_000
_FOR_CARDS = 0.6  # of the bytes; what lies beside them is seen small
_LARGEST_BESIDE = 128
_SAMPLES = 24  # pictures by which sizes are chosen
_LENGTHS = (20_000, 10_000, 5_000, 2_000, 1_000, 600)  # characters of a text that the page holds
_LONGEST_BESIDE = 600


@dataclass(frozen=True, slots=True)
class Gallery:
    """What the page holds of examples."""

    mode: Mode
    shown: tuple[str | Mapping[str, Any], ...]  # base64 of a picture or its address; a text or a row as a record
    place: Mapping[str, int]  # from the text of an id
    content: Mapping[str, str]  # hashes, of cards alone
    num_missing: int = 0
    columns: tuple[str, ...] = ()  # of rows
    num_cut: int = 0  # texts that are longer than the page holds
    longest: int = 0  # characters of such a text that it holds

    def number(self, ident: Any) -> int:
        """Where an example is shown; -1 where it is not."""
        return self.place.get(str(ident), -1)

    def count_kinds(self) -> dict[str, int]:
        """How many pictures, texts and rows there are; kinds that are not there are left out."""
        kinds = Counter(_kind(item) for item in self.shown)
        return {kind: kinds[kind] for kind in ("picture", "text", "row") if kinds[kind]}


def build_gallery(
    pictures: Pictures | None,
    cards: Sequence[Any],
    beside: Sequence[Any],
    *,
    queued: Sequence[Any] = (),
    mode: Mode = "embed",
    display: Callable[[Any], Any] | None = None,
    sample: Callable[[], Sequence[Any]] | None = None,
) -> Gallery:
    """Read and shrink the examples of a page: those of cards and other queues, and those beside, which are seen small.

    Without a place of examples, cards show none. For ``display`` see :func:`sgoif.pictures.displayed`; ``sample`` gives
    ids of rows that tell what is usual in a table, asked where examples are rows.
    """
    if mode not in get_args(Mode):
        raise SgoifError(f"pictures must be one of {', '.join(get_args(Mode))}, got {mode!r}.")
    if pictures is None or mode == "none":
        return Gallery("none", (), {}, {})
    large = list({str(ident): ident for ident in (*cards, *queued)}.values())
    known = {str(ident) for ident in large}
    small = list({str(ident): ident for ident in beside if str(ident) not in known}.values())
    if mode == "link":
        return _link(pictures, large, small)
    budget = max(_LEAST_BYTES, _BYTES_PER_CARD * len(cards))
    content: dict[str, str] = {}
    found = _encode(pictures, large, int(_FOR_CARDS * budget), None, display, content)
    rest = _encode(pictures, small, int((1 - _FOR_CARDS) * budget), _LARGEST_BESIDE, display, None)
    everything = {**found, **rest}
    longest = _choose_length([value for value in found.values() if _is_text(value)], _LEAST_BYTES)
    rows = [value.value for value in everything.values() if isinstance(value, _Held) and not _is_text(value)]
    usage = _measure(rows, _read_rows(pictures, sample)) if rows else {}
    shown = {
        ident: _describe(value, longest if ident in found else _LONGEST_BESIDE, usage)
        for ident, value in everything.items()
    }
    return Gallery(
        "embed",
        tuple(shown.values()),
        {ident: number for number, ident in enumerate(shown)},
        content,
        len(large) + len(small) - len(shown),
        tuple(usage),
        sum(_is_text(value) and len(value.value) > longest for value in found.values()),
        longest,
    )


def content_hashes(pictures: Pictures | None, ids: Sequence[Any]) -> dict[str, str]:
    """Name some examples by their content; those that cannot be read have no name."""
    found = {}
    for ident, value in zip(ids, pictures.read(ids) if pictures is not None else ()):
        if value is not None:
            found[str(ident)] = _hash(value)
    return found


@dataclass(frozen=True, slots=True)
class _Held:
    """A text or a row as it was read, until all are known."""

    value: Any


def _is_text(value: Any) -> TypeGuard[_Held]:
    return isinstance(value, _Held) and isinstance(value.value, str)


def _kind(item: str | Mapping[str, Any]) -> str:
    return "picture" if isinstance(item, str) else "text" if "text" in item else "row"


def _describe(value: str | _Held, longest: int, usage: Mapping[str, ColumnUsage]) -> str | dict[str, Any]:
    if isinstance(value, str):
        return value
    if not isinstance(value.value, str):
        return describe_row(value.value, usage)
    left = len(value.value) - longest
    return {"text": value.value[:longest], "left": left} if left > 0 else {"text": value.value}


def _choose_length(texts: Sequence[Any], budget: int) -> int:
    """Choose how much of a text the page holds, the same of all: the largest of some lengths at which they fit."""
    sizes = [len(text.value) for text in texts]
    return next((most for most in _LENGTHS if sum(min(size, most) for size in sizes) <= budget), _LENGTHS[-1])


def _measure(rows: Sequence[Mapping[str, Any]], sampled: Sequence[Mapping[str, Any]]) -> dict[str, ColumnUsage]:
    """What is usual in each column among the sampled rows; of columns that none of them has, among those shown."""
    usage = measure_columns(sampled)
    rest = [{name: cell for name, cell in row.items() if str(name) not in usage} for row in rows]
    return {**usage, **measure_columns(rest)} if any(rest) else usage


def _read_rows(pictures: Pictures, sample: Callable[[], Sequence[Any]] | None) -> list[Mapping[str, Any]]:
    ids = [] if sample is None else sample()
    return [value for value in pictures.read(ids) if isinstance(value, Mapping)]


def _link(pictures: Pictures, large: Sequence[Any], small: Sequence[Any]) -> Gallery:
    links = {str(ident): pictures.link(ident) for ident in (*large, *small)}
    if links and not any(links.values()):
        raise SgoifError(f"{pictures.about} has no addresses that a page could link to; embed the examples instead.")
    kept = {ident: link for ident, link in links.items() if link is not None}
    place = {ident: number for number, ident in enumerate(kept)}
    return Gallery("link", tuple(kept.values()), place, content_hashes(pictures, large), len(links) - len(kept))


def _encode(
    pictures: Pictures,
    ids: Sequence[Any],
    budget: int,
    largest: int | None,
    display: Callable[[Any], Any] | None,
    content: dict[str, str] | None,
) -> dict[str, str | _Held]:
    """Base64 of each picture that can be read; texts and rows as they are.

    Samples from all over the list tell how large pictures may be.
    """
    step = max(len(ids) // _SAMPLES, 1)
    samples = [image for value in pictures.read(ids[::step][:_SAMPLES]) if (image := read_image(value, display))]
    side = choose_side(samples, len(ids), budget)
    side = side if largest is None else min(side, largest)
    found: dict[str, str | _Held] = {}
    for ident, value in zip(ids, pictures.read(ids)):
        if display is None and is_written(value):
            found[str(ident)] = _Held(value)
        else:
            image = read_image(value, display)
            if image is None:
                continue
            found[str(ident)] = base64.b64encode(thumbnail(image, side)).decode()
        if content is not None:
            content[str(ident)] = _hash(value)
    return found


def read_image(value: Any, display: Callable[[Any], Any] | None) -> Image | None:
    """Make a picture of an item of the data; None where it cannot be read."""
    if value is None or (display is None and is_written(value)):
        return None
    try:
        return displayed(value, display)
    except PictureError:
        return None


def _hash(value: Any) -> str:
    if is_written(value):
        return written_hash(value)
    try:
        return content_hash(value)
    except PictureError:
        return ""
