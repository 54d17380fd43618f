"""Pictures as people have them: any mode or depth, turned by EXIF, animated; or broken, and then passed over.

Pictures may come from strangers. Only formats that Pillow reads by itself are opened, never one that starts another
program (EPS) or holds documents (PDF); only regular files are read; and what a picture would take in memory is known
from its header before it is decoded.
"""

from __future__ import annotations

import functools
import io
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SgoifError

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["FORMATS", "MOST_BYTES", "PictureError", "apply_window", "decode", "read_file", "square", "upright_rgb"]

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "AVIF")
MOST_BYTES = 256 << 20  # of an encoded picture
_MOST_MEMORY = 640_000_000  # bytes that decoding may take: 80 million pixels of a photograph, 32 million of 16 bits
_SAMPLED = 1 << 22  # pixels that percentiles are taken of; more are thinned out


class PictureError(SgoifError):
    """A file that is no picture, or a broken one."""


def decode(source: bytes | Path | PictureError) -> Image:
    """Decode to 8-bit RGB, upright; the first frame of an animation.

    Transparent pixels become white. Single-channel pictures of more than 8 bits are shown through a window from their
    1st to their 99th percentile.

    Raises:
        PictureError: The data is no picture of :data:`FORMATS`, is cut short, is no regular file, or would take more
            than 640 MB to decode.
    """
    from PIL import Image

    if isinstance(source, PictureError):  # what a table said in place of a picture
        raise source
    try:
        data = read_file(source) if isinstance(source, Path) else source
        if len(data) > MOST_BYTES:
            raise PictureError(f"it has {len(data):,} bytes, more than the {MOST_BYTES:,} that a picture may have")
        _check_webp(data)
        with Image.open(io.BytesIO(data), formats=_known_formats()) as picture:
            _check_memory(picture.width, picture.height, picture.mode)
            picture.load()
            return upright_rgb(picture)
    except PictureError:
        raise
    except Exception as error:  # Pillow's decoders raise whatever they like on broken files
        text = str(error).partition(" <_io.BytesIO")[0]  # which names an address in memory
        raise PictureError(f"{type(error).__name__}: {text}") from error


def read_file(path: str | os.PathLike[str]) -> bytes:
    """Read a regular file of at most :data:`MOST_BYTES`; a pipe or a device is refused, and never waited for.

    Raises:
        PictureError: It is no regular file, or too large.
        OSError: It cannot be read.
    """
    # not blocking: to open a pipe for reading would wait for a writer
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise PictureError("it is no regular file")
        if found.st_size > MOST_BYTES:
            raise PictureError(f"it has {found.st_size:,} bytes, more than the {MOST_BYTES:,} that a picture may have")
        return file.read(MOST_BYTES + 1)  # a file may grow


@functools.cache
def _known_formats() -> tuple[str, ...]:
    """Those that this Pillow has; AVIF came late."""
    from PIL import Image

    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _check_memory(width: int, height: int, mode: str) -> None:
    """Refuse a picture whose decoding would take too much memory, with the copies that are made on the way."""
    per_pixel = 20 if mode.startswith(("I", "F")) else 16 if mode in ("RGBA", "LA", "PA", "P") else 8
    if width * height * per_pixel > _MOST_MEMORY:
        raise PictureError(
            f"DecompressionBomb: {width:,} x {height:,} pixels of mode {mode} would take "
            f"{width * height * per_pixel / 1e9:.1f} GB to decode, more than {_MOST_MEMORY / 1e9:.2f} GB"
        )


def _check_webp(data: bytes) -> None:
    """Look at the size in a WebP header: its decoder takes the memory of the canvas as soon as it is opened."""
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP" or len(data) < 30:
        return
    kind, number = data[12:16], lambda start, count: int.from_bytes(data[start : start + count], "little")
    if kind == b"VP8X":
        _check_memory(number(24, 3) + 1, number(27, 3) + 1, "RGBA")
    elif kind == b"VP8 ":
        _check_memory(number(26, 2) & 0x3FFF, number(28, 2) & 0x3FFF, "RGBA")
    elif kind == b"VP8L":
        _check_memory((number(21, 4) & 0x3FFF) + 1, (number(21, 4) >> 14 & 0x3FFF) + 1, "RGBA")


def upright_rgb(picture: Image) -> Image:
    """Turn an open picture as EXIF says, and make it 8-bit RGB."""
    from PIL import Image, ImageOps

    picture = ImageOps.exif_transpose(picture)
    if picture.mode.startswith(("I", "F")):
        return Image.fromarray(apply_window(np.asarray(picture))).convert("RGB")
    if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
        shown = picture.convert("RGBA")
        paper = Image.new("RGBA", shown.size, "white")
        return Image.alpha_composite(paper, shown).convert("RGB")
    return picture.convert("RGB")


def apply_window(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Scale the 1st to 99th percentile of the finite values to 0..255; NaN becomes black."""
    sample = values.reshape(-1)[:: max(1, values.size // _SAMPLED)]
    finite = sample[np.isfinite(sample)]
    low, high = np.percentile(finite, [1, 99]) if finite.size else (0.0, 1.0)
    found = np.empty(values.shape, np.uint8)
    for row in range(0, len(values), 256):  # in bands: a large picture is not held in floats as a whole
        scaled = (values[row : row + 256].astype(np.float64) - low) / max(high - low, 1e-12)
        found[row : row + 256] = 255 * np.clip(np.nan_to_num(scaled, nan=0.0), 0, 1)
    return found


def square(picture: Image, side: int) -> NDArray[np.uint8]:
    """Scale so that the shorter side is ``side``, and cut the middle out: ``[side, side, 3]``."""
    from PIL import Image, ImageOps

    fitted: Any = picture if picture.size == (side, side) else ImageOps.fit(picture, (side, side), Image.Resampling.BOX)
    return np.asarray(fitted, dtype=np.uint8)
