"""Backbones of the user's own: what they are given and may return, and whose mistake an error is."""

import numpy as np
import pytest
import torch
from PIL import Image

from sgoif.errors import SgoifError
from sgoif.scan.embeddings import embed
from sgoif.sources.labelled import open_source


@pytest.fixture
def source(tmp_path):
    for name in ("ant", "bee"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (8, 8), (80 * number, 9, 9)).save(tmp_path / "data" / name / f"{number}.png")
    (tmp_path / "data" / "bee" / "broken.png").write_bytes(b"no picture")
    return open_source(tmp_path / "data")


def plain(pictures):
    return pictures.mean((2, 3))


def run(source, backbone, **options):
    return embed(source, np.arange(len(source.ids)), backbone, name="mine:make", **options)


def test_a_picture_that_cannot_be_read_has_a_reason(source):
    found = run(source, plain)
    broken = list(source.ids).index("bee/broken.png")
    assert "cannot identify image file" in found.reasons[broken] and "0x" not in found.reasons[broken]
    assert [bool(reason) for reason in found.reasons] == [i == broken for i in range(7)]


@pytest.mark.parametrize(
    ("backbone", "words"),
    [
        (torch.nn.Linear(4, 2), r"given float32 pictures \[6, 3, 224, 224\] in \[0, 1\], raised RuntimeError"),
        (lambda pictures: pictures.mean(), r"returned a tensor \[\]; expected \[6, D\]"),
        (lambda pictures: plain(pictures)[:2], r"returned a tensor \[2, 3\]; expected \[6, D\]"),
        (lambda pictures: (plain(pictures),), "returned a tuple; expected"),
    ],
)
def test_mistakes_of_a_backbone_are_reported_as_its_own(source, backbone, words):
    with pytest.raises(SgoifError, match=rf"the backbone 'mine:make', {words}" if "given" in words else words):
        run(source, backbone)


def test_kept_embeddings_serve_until_a_picture_changes(source, tmp_path):
    calls = []

    def counting(pictures):
        calls.append(len(pictures))
        return plain(pictures)

    first = run(source, counting, cache=tmp_path / "cache")
    again = run(source, counting, cache=tmp_path / "cache")
    assert calls == [6] and again.reasons == first.reasons and np.array_equal(again.rows, first.rows)
    Image.new("RGB", (9, 9), (255, 255, 255)).save(tmp_path / "data" / "bee" / "broken.png")  # mended
    mended = run(source, counting, cache=tmp_path / "cache")
    assert calls == [6, 7] and not any(mended.reasons)
