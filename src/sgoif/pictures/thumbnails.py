"""Small pictures to put into a page: re-encoded from pixels alone, so that nothing else of the file travels along."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["SIDES", "choose_side", "data_uri", "thumbnail"]

SIDES = (512, 384, 256, 192, 128, 96, 64)  # pixels of the longer side
_TINY = 64  # pixels; JPEG's blocks of 8 and halved colour ruin a picture of 32, and PNG costs little there


def thumbnail(picture: Image, side: int, quality: int = 80) -> bytes:
    """Encode a picture so that its longer side is at most ``side``: JPEG, or PNG where it is tiny.

    It is never enlarged. EXIF, colour profiles, comments and text stay behind.
    """
    from PIL import Image

    width, height = picture.size
    scale = min(1.0, side / max(width, height))
    size = (max(1, round(scale * width)), max(1, round(scale * height)))
    pixels = picture if size == picture.size else picture.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)
    clean = Image.new("RGB", size)  # a new picture: `convert` and `copy` would keep what Pillow knows of the file
    clean.paste(pixels)
    buffer = io.BytesIO()
    if max(size) <= _TINY:
        clean.save(buffer, "PNG", optimize=True)
    else:
        clean.save(buffer, "JPEG", quality=quality, optimize=True)
    return buffer.getvalue()


def choose_side(samples: Sequence[Image], count: int, budget: int) -> int:
    """Choose the largest of :data:`SIDES` at which ``count`` pictures fit into ``budget`` bytes of base64.

    Their size is guessed from the mean of the samples. Where not even the smallest fits it is the smallest: then show
    fewer. Without samples there is nothing to go by, and it is the smallest too.
    """
    for side in SIDES if samples else ():
        encoded = sum(_base64_bytes(len(thumbnail(sample, side))) for sample in samples)
        if encoded * count <= budget * len(samples):
            return side
    return SIDES[-1]


def data_uri(encoded: bytes) -> str:
    """Write a thumbnail as the ``src`` of an ``<img>``."""
    kind = "png" if encoded.startswith(b"\x89PNG") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(encoded).decode()}"


def _base64_bytes(count: int) -> int:
    return 4 * -(-count // 3)
