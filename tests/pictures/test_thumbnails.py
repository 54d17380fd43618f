"""Thumbnails: small, faithful, and with nothing but pixels in them."""

import base64
import io

import numpy as np
import pytest
from PIL import Image, ImageCms
from PIL.PngImagePlugin import PngInfo

from sgoif.pictures import choose_side, data_uri, displayed, thumbnail
from sgoif.pictures.display import SIDES
from tests.pictures.files import encoded, picture

PLACE = "48.137154N 11.576124E at home"


def tagged(format):
    """A picture that tells where it was taken, in every way that its format has."""
    image = picture(size=(200, 150))
    exif = image.getexif()
    exif[0x010E] = PLACE
    exif.get_ifd(0x8825)[29] = PLACE  # GPS
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    more = {"comment": PLACE.encode()} if format == "JPEG" else {"pnginfo": PngInfo()}
    if format == "PNG":
        more["pnginfo"].add_text("Location", PLACE)
    return encoded(image, format, exif=exif, icc_profile=profile, **more)


@pytest.mark.parametrize("format", ["JPEG", "PNG"])
@pytest.mark.parametrize("side", [512, 128, 32])
def test_nothing_but_pixels_travels_along(format, side):
    source = tagged(format)
    assert source.count(PLACE.encode()) >= 3 and (b"ICC_PROFILE" in source or b"iCCP" in source)
    for opened in (displayed(source), Image.open(io.BytesIO(source))):
        made = thumbnail(opened, side)
        assert PLACE.encode() not in made
        for mark in (b"Exif", b"eXIf", b"ICC_PROFILE", b"iCCP", b"tEXt", b"zTXt", b"iTXt", b"\xff\xfe\0", b"http"):
            assert mark not in made, mark
        assert set(Image.open(io.BytesIO(made)).info) <= {"jfif", "jfif_version", "jfif_unit", "jfif_density"}


def test_sizes_and_formats():
    for size, side, expected, format in (
        ((400, 300), 128, (128, 96), "JPEG"),
        ((300, 400), 64, (48, 64), "PNG"),
        ((32, 32), 512, (32, 32), "PNG"),  # never enlarged
        ((100, 80), 512, (100, 80), "JPEG"),
        ((3000, 2), 96, (96, 1), "JPEG"),
    ):
        data = thumbnail(picture(size=size), side)
        made = Image.open(io.BytesIO(data))
        assert (made.size, made.format, made.mode) == (expected, format, "RGB")
        assert data_uri(data) == f"data:image/{format.lower()};base64,{base64.b64encode(data).decode()}"
        if size == (32, 32):
            assert (np.asarray(made) == np.asarray(picture(size=size))).all()


@pytest.mark.parametrize("budget", [10**8, 10**6, 300_000, 10**5, 1])
def test_the_largest_side_that_fits_is_chosen(budget):
    samples = [picture(seed, size=(640, 480)) for seed in range(3)]
    chosen = choose_side(samples, 50, budget)

    def needed(side):
        return 50 * np.mean([len(base64.b64encode(thumbnail(sample, side))) for sample in samples])

    fitting = [side for side in SIDES if needed(side) <= budget]
    assert chosen == max(fitting, default=64)


def test_small_pictures_need_no_small_side_and_no_samples_the_smallest():
    assert choose_side([picture(size=(32, 32))], 10, 100_000) == 512
    assert choose_side([], 10, 10**9) == 64
