"""Pictures as people have them: any mode or depth, turned by EXIF, animated; or broken, and then passed over."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SgoifError

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["PictureError", "decode", "square", "upright_rgb", "windowed"]


class PictureError(SgoifError):
    """A file that is no picture, or a broken one."""


def decode(source: bytes | Path) -> Image:
    """Decode to 8-bit RGB, upright; the first frame of an animation.

    Transparent pixels become white. Single-channel pictures of more than 8 bits are shown through a window from their
    1st to their 99th percentile.

    Raises:
        PictureError: The data is no picture, is cut short, or claims more pixels than a picture has.
    """
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            picture = Image.open(io.BytesIO(source) if isinstance(source, bytes) else source)
            picture.load()
            return upright_rgb(picture)
    except Exception as error:  # Pillow's decoders raise whatever they like on broken files
        raise PictureError(f"{type(error).__name__}: {error}") from error


def upright_rgb(picture: Image) -> Image:
    """Turn an open picture as EXIF says, and make it 8-bit RGB."""
    from PIL import Image, ImageOps

    picture = ImageOps.exif_transpose(picture)
    if picture.mode.startswith(("I", "F")):
        return Image.fromarray(windowed(np.asarray(picture, dtype=np.float64))).convert("RGB")
    if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
        shown = picture.convert("RGBA")
        paper = Image.new("RGBA", shown.size, "white")
        return Image.alpha_composite(paper, shown).convert("RGB")
    return picture.convert("RGB")


def windowed(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Scale the 1st to 99th percentile of the finite values to 0..255; NaN becomes black."""
    finite = values[np.isfinite(values)]
    low, high = np.percentile(finite, [1, 99]) if finite.size else (0.0, 1.0)
    scaled = (np.nan_to_num(values, nan=low) - low) / max(high - low, 1e-12)
    return (255 * np.clip(scaled, 0, 1)).astype(np.uint8)


def square(picture: Image, side: int) -> NDArray[np.uint8]:
    """Scale so that the shorter side is ``side``, and cut the middle out: ``[side, side, 3]``."""
    from PIL import Image, ImageOps

    fitted: Any = picture if picture.size == (side, side) else ImageOps.fit(picture, (side, side), Image.Resampling.BOX)
    return np.asarray(fitted, dtype=np.uint8)
