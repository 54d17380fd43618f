"""Real picture files, small, of the kinds that people have."""

import io

import numpy as np
from PIL import Image

RED = (200, 30, 40)


def png(colour=RED, size=(8, 6), mode="RGB", **saving):
    buffer = io.BytesIO()
    Image.new(mode, size, colour).save(buffer, saving.pop("format", "PNG"), **saving)
    return buffer.getvalue()


def picture(seed=0, size=(40, 30)):
    """A picture with structure, another for every seed."""
    noise = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)


def encoded(image, format="PNG", **saving):
    buffer = io.BytesIO()
    image.save(buffer, format, **saving)
    return buffer.getvalue()
