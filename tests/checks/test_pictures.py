"""Pictures that are dark, bright, blurry, tiny, long or blank are found; a set that looks so is left alone."""

import numpy as np
import pytest

from sgoif.checks import CheckedData
from sgoif.errors import SgoifError
from sgoif.pictures.statistics import measure_pictures
from tests.checks.worlds import issues


def made(size=400, seed=0):
    """Pictures of blobs and noise, all of 64 x 48 pixels before scaling."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(30, 225, (size, 8, 8, 3)).repeat(4, 1).repeat(4, 2)
    pictures = np.clip(coarse + rng.normal(0, 12, coarse.shape), 0, 255).astype(np.uint8)
    return pictures, np.tile([64, 48], (size, 1))


def check(pictures, sizes):
    labels = np.arange(len(pictures)) % 2
    return issues(CheckedData(np.arange(len(pictures)), labels, ["a", "b"], pictures=measure_pictures(pictures, sizes)))


ODD = ("dark_pictures", "bright_pictures", "blurry_pictures", "tiny_pictures", "odd_aspect_ratio", "low_information")


def test_ordinary_pictures_are_not_odd():
    found = check(*made())
    assert [kind for kind in ODD if found[kind].is_found or found[kind].count is None] == []


def test_each_kind_of_odd_picture_is_found_and_no_other():
    pictures, sizes = made()
    pictures[0] //= 20  # dark
    pictures[1] = 255 - pictures[1] // 20  # bright
    smooth = pictures[2].astype(float)
    for _ in range(30):
        smooth = (smooth + sum(np.roll(smooth, shift, axis) for shift in (1, -1) for axis in (0, 1))) / 5
    pictures[2] = smooth
    sizes[3], sizes[4] = (8, 6), (640, 48)
    pictures[5] = 120
    found = check(pictures, sizes)
    assert set(found["low_information"].ids) == {"5", "0", "1"}  # what is almost black or white says little too
    assert {kind: found[kind].ids for kind in ODD[:5]} == {
        "dark_pictures": ("0",),
        "bright_pictures": ("1",),
        "blurry_pictures": ("2",),
        "tiny_pictures": ("3",),
        "odd_aspect_ratio": ("4",),
    }


def test_a_set_of_dark_pictures_is_not_odd():
    pictures, sizes = made()
    found = check(pictures // 20, sizes)["dark_pictures"]
    assert not found.is_found and found.count == 0 and "how this set looks" in found.title and found.share == 1


def test_statistics_of_a_picture_known_by_hand():
    half = np.zeros((1, 8, 8, 3), np.uint8)
    half[:, :, 4:] = 255
    found = measure_pictures(half, np.array([[200, 100]]))
    assert found["brightness"][0] == pytest.approx(0.5, abs=1e-6) and found["contrast"][0] == pytest.approx(
        0.5, abs=1e-6
    )
    assert found["entropy"][0] == pytest.approx(1.0) and found["aspect"][0] == 2
    assert found["darkest"][0] == 0 and found["brightest"][0] == pytest.approx(1)
    grey = measure_pictures(half[..., :1], np.array([[200, 100]]))
    assert all(np.allclose(grey[name], found[name]) for name in found)


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(SgoifError, match=r"must be \[N, S, S, 3\]"):
        measure_pictures(np.zeros((2, 8, 8), np.uint8), np.zeros((2, 2), int))
