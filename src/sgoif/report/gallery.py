"""The pictures of a page: read once each, made small, and no more of them than are shown."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from sgoif.errors import SgoifError
from sgoif.pictures import choose_side, content_hash, displayed, thumbnail
from sgoif.pictures.decode import PictureError
from sgoif.sources import Pictures

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Gallery", "Mode", "build_gallery", "content_hashes", "read_image"]

Mode = Literal["embed", "link", "none"]

_BYTES_PER_CARD = 40_000  # 500 cards stay under 25 MB with all that lies beside them
_LEAST_BYTES = 20_000_000
_FOR_CARDS = 0.6  # of the bytes; what lies beside them is seen small
_LARGEST_BESIDE = 128
_SAMPLES = 24  # pictures by which sizes are chosen


@dataclass(frozen=True, slots=True)
class Gallery:
    """What the page holds of pictures."""

    mode: Mode
    sources: tuple[str, ...]  # base64 of a picture, or its address
    place: dict[str, int]  # from the text of an id
    content: dict[str, str]  # hashes, of cards alone
    num_missing: int

    def number(self, ident: Any) -> int:
        """Where a picture hangs; -1 where there is none."""
        return self.place.get(str(ident), -1)


def build_gallery(
    pictures: Pictures | None,
    cards: Sequence[Any],
    beside: Sequence[Any],
    *,
    mode: Mode = "embed",
    display: Callable[[Any], Any] | None = None,
) -> Gallery:
    """Read and shrink the pictures of a page: those of cards, and those beside them, which are seen small.

    Without a place of pictures, cards show none. For ``display`` see :func:`sgoif.pictures.displayed`.
    """
    if mode not in get_args(Mode):
        raise SgoifError(f"pictures must be one of {', '.join(get_args(Mode))}, got {mode!r}.")
    if pictures is None or mode == "none":
        return Gallery("none", (), {}, {}, 0)
    large = list({str(ident): ident for ident in cards}.values())
    known = {str(ident) for ident in large}
    small = list({str(ident): ident for ident in beside if str(ident) not in known}.values())
    if mode == "link":
        return _link(pictures, large, small)
    budget = max(_LEAST_BYTES, _BYTES_PER_CARD * len(large))
    content: dict[str, str] = {}
    found = _encode(pictures, large, int(_FOR_CARDS * budget), None, display, content)
    rest = _encode(pictures, small, int((1 - _FOR_CARDS) * budget), _LARGEST_BESIDE, display, None)
    place = {ident: number for number, ident in enumerate([*found, *rest])}
    missing = len(large) + len(small) - len(place)
    return Gallery("embed", tuple([*found.values(), *rest.values()]), place, content, missing)


def content_hashes(pictures: Pictures | None, ids: Sequence[Any]) -> dict[str, str]:
    """Name some pictures by their content; those that cannot be read have no name."""
    found = {}
    for ident, value in zip(ids, pictures.read(ids) if pictures is not None else ()):
        if value is not None:
            found[str(ident)] = _hash(value)
    return found


def _link(pictures: Pictures, large: Sequence[Any], small: Sequence[Any]) -> Gallery:
    links = {str(ident): pictures.link(ident) for ident in (*large, *small)}
    if links and not any(links.values()):
        raise SgoifError(f"{pictures.about} has no addresses that a page could link to; embed the pictures instead.")
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
) -> dict[str, str]:
    """Base64 of each picture that can be read. Samples from all over the list tell how large they may be."""
    step = max(len(ids) // _SAMPLES, 1)
    samples = [image for value in pictures.read(ids[::step][:_SAMPLES]) if (image := read_image(value, display))]
    side = choose_side(samples, len(ids), budget)
    side = side if largest is None else min(side, largest)
    found = {}
    for ident, value in zip(ids, pictures.read(ids)):
        image = read_image(value, display)
        if image is None:
            continue
        found[str(ident)] = base64.b64encode(thumbnail(image, side)).decode()
        if content is not None:
            content[str(ident)] = _hash(value)
    return found


def read_image(value: Any, display: Callable[[Any], Any] | None) -> Image | None:
    """Make a picture of an item of the data; None where it cannot be read."""
    if value is None:
        return None
    try:
        return displayed(value, display)
    except PictureError:
        return None


def _hash(value: Any) -> str:
    try:
        return content_hash(value)
    except PictureError:
        return ""
