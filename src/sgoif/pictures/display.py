"""Whatever a dataset calls a picture, made fit to look at: 8-bit RGB; its name by content; thumbnails for a page.

Thumbnails are encoded anew from pixels alone, so that nothing else of the file travels along.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sgoif.pictures.decode import PictureError, apply_window, decode, read_file, upright_rgb

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["SIDES", "choose_side", "content_hash", "data_uri", "displayed", "thumbnail"]

SIDES = (512, 384, 256, 192, 128, 96, 64)  # pixels of the longer side
_TINY = 64  # pixels; JPEG's blocks of 8 and halved colour ruin a picture of 32, and PNG costs little there
_USUAL = (1, 3, 4)  # numbers of channels


def displayed(value: Any, display: Callable[[Any], Any] | None = None) -> Image:
    """Make a picture of encoded bytes, a path, a PIL image, an array or a tensor.

    8-bit pixels stay as they are, and so do floats that are 8-bit pixels over 255 (``ToTensor``). All else is scaled
    from its 1st to its 99th percentile. One window serves all channels: a window each would balance the colours, and
    make a red picture grey. Normalisation moves the channels by nearly equal amounts, and leaves but a slight cast.

    Channels are the first or the last axis: the one with 1, 3 or 4 entries, else the shorter; where both would do, the
    first of a tensor and the last of an array. Four 8-bit channels are RGBA, shown on white. Of 4 others or more the
    first three are shown, of two the first. Of an animation or a TIFF of many pages it is the first.

    Args:
        value: the picture.
        display: makes of it anything that this function takes, where that is not enough: ``lambda x: x[[3, 2, 1]]``.

    Raises:
        PictureError: It is no picture, a broken one, or of a kind that Pillow does not read.
    """
    try:
        return _show(value if display is None else display(value))
    except PictureError:
        raise
    except Exception as error:  # Pillow's decoders and the user's function raise whatever they like
        raise PictureError(f"{type(error).__name__}: {error}") from error


def content_hash(value: Any) -> str:
    """Name a picture by its content: 16 hexadecimal characters of BLAKE2b.

    Over the encoded bytes, those of the file for a path; over type, shape and pixels of anything else. A tensor and an
    array of the same numbers have the same name; a file and its decoded pixels have not.

    Raises:
        PictureError: It cannot be read, or is no picture.
    """
    digest = hashlib.blake2b(digest_size=8)
    try:
        if isinstance(value, str | os.PathLike):
            digest.update(read_file(value))
        elif isinstance(value, bytes | bytearray | memoryview):
            digest.update(value)
        elif _is_pil(value):
            palette = value.getpalette() if value.mode in ("P", "PA") else None
            digest.update(f"{value.mode}{value.size}{palette}{value.info.get('transparency')}".encode())
            digest.update(value.tobytes())
        else:
            array = np.ascontiguousarray(_as_array(value))
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            digest.update(array.tobytes())
    except PictureError:
        raise
    except Exception as error:  # a file that is gone, a picture cut short
        raise PictureError(f"{type(error).__name__}: {error}") from error
    return digest.hexdigest()


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
        encoded = sum(4 * -(-len(thumbnail(sample, side)) // 3) for sample in samples)
        if encoded * count <= budget * len(samples):
            return side
    return SIDES[-1]


def data_uri(encoded: bytes) -> str:
    """Write a thumbnail as the ``src`` of an ``<img>``."""
    kind = "png" if encoded.startswith(b"\x89PNG") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(encoded).decode()}"


def _show(value: Any) -> Image:
    if isinstance(value, bytes | bytearray | memoryview):
        return decode(bytes(value))
    if isinstance(value, str | os.PathLike):
        return decode(Path(value))
    if _is_pil(value):
        return upright_rgb(value)
    return _picture_of(_as_array(value), channels_first=hasattr(value, "detach"))


def _is_pil(value: Any) -> bool:
    return hasattr(value, "getbands") and hasattr(value, "tobytes")


def _as_array(value: Any) -> NDArray[Any]:
    if hasattr(value, "detach"):  # a tensor; torch itself is not needed
        value = value.detach().cpu()
        array = value.float().numpy() if "bfloat16" in str(value.dtype) else value.numpy()  # numpy has no bfloat16
    else:
        array = np.asarray(value)
    if array.dtype.kind not in "buif" or array.size == 0:
        raise PictureError(f"a {type(value).__name__} of {array.dtype}, shape {array.shape}, is no picture.")
    return np.asarray(array)


def _picture_of(array: NDArray[Any], channels_first: bool) -> Image:
    from PIL import Image

    pixels = _bands(_channels_last(array, channels_first))
    picture = Image.fromarray(np.ascontiguousarray(_eight_bit(pixels)))
    return upright_rgb(picture)


def _channels_last(array: NDArray[Any], channels_first: bool) -> NDArray[Any]:
    shape = array.shape
    while array.ndim > 3 and array.shape[0] == 1:  # a batch of one
        array = array[0]
    if array.ndim == 2:
        return array[..., None]
    if array.ndim != 3:
        raise PictureError(f"shape {shape} is no picture; expected [H, W], [C, H, W] or [H, W, C].")
    first, last = array.shape[0], array.shape[2]
    if (first in _USUAL) != (last in _USUAL):
        channels_first = first in _USUAL
    elif first not in _USUAL and first != last:
        channels_first = first < last
    return np.moveaxis(array, 0, 2) if channels_first else array


def _bands(pixels: NDArray[Any]) -> NDArray[Any]:
    """Take the bands to show: ``[H, W]``, ``[H, W, 3]``, or ``[H, W, 4]`` with transparency."""
    count = pixels.shape[2]
    if count < 3:
        return pixels[..., 0]
    return pixels if count == 4 and pixels.dtype == np.uint8 else pixels[..., :3]


def _eight_bit(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    if pixels.dtype == np.uint8:
        return np.asarray(pixels, dtype=np.uint8)
    if pixels.dtype == np.bool_:
        return np.asarray(pixels * 255, dtype=np.uint8)
    if pixels.dtype.kind == "f" and pixels.min() >= 0 and pixels.max() <= 1:  # false for NaN
        levels = pixels.astype(np.float32) * 255
        whole = np.rint(levels)
        if np.abs(levels - whole).max() < (0.1 if pixels.dtype == np.float16 else 1e-3):  # half precision: 255 * 2**-12
            return np.asarray(whole, dtype=np.uint8)
    return apply_window(pixels)
