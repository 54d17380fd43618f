"""Decoding: pictures as people have them become 8-bit RGB, broken ones raise one kind of error."""

import io

import numpy as np
import pytest
from PIL import Image

from sgoif.pictures.decode import PictureError, decode, square
from tests.pictures.files import RED, png


def test_pictures_of_every_kind_become_rgb():
    frames = [Image.new("P", (5, 5), i) for i in range(3)]
    buffer = io.BytesIO()
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
    deep = io.BytesIO()
    Image.fromarray(np.linspace(0, 65535, 64).reshape(8, 8).astype(np.uint16)).save(deep, "PNG")
    turned = Image.new("RGB", (8, 6), RED)
    exif = turned.getexif()
    exif[0x0112] = 6  # stored lying on its side
    side = io.BytesIO()
    turned.save(side, "JPEG", exif=exif)
    cmyk = png((0, 255, 255, 0), mode="CMYK", format="JPEG")
    for data, size in (
        (buffer.getvalue(), (5, 5)),
        (deep.getvalue(), (8, 8)),
        (side.getvalue(), (6, 8)),
        (cmyk, (8, 6)),
    ):
        picture = decode(data)
        assert picture.mode == "RGB"
        assert picture.size == size
    shades = np.asarray(decode(deep.getvalue()))[..., 0]
    assert shades.min() == 0 and shades.max() == 255 and len(np.unique(shades)) > 32
    assert decode(png((0, 0, 0, 0), mode="RGBA")).getpixel((0, 0)) == (255, 255, 255)
    assert decode(cmyk).getpixel((0, 0))[0] > 200


@pytest.mark.parametrize("data", [b"", b"not a picture", png()[:40], b"\x89PNG\r\n\x1a\n" + b"\0" * 50])
def test_broken_pictures_raise_one_kind_of_error(data):
    with pytest.raises(PictureError):
        decode(data)


def test_a_picture_that_claims_too_many_pixels_is_refused(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)
    with pytest.raises(PictureError, match="DecompressionBomb"):
        decode(png(size=(8, 8)))


def test_square_keeps_the_middle():
    picture = Image.new("RGB", (30, 10), (0, 0, 0))
    picture.paste(Image.new("RGB", (10, 10), RED), (10, 0))
    found = square(picture, 10)
    assert found.shape == (10, 10, 3)
    assert (found == np.array(RED)).all()
