"""The driver: what cannot be read, batches, and a kept result that serves until the data or the encoder change."""

import os

import numpy as np
import pytest
from PIL import Image

from sgoif.backbones import driver
from sgoif.backbones.driver import Items, embed_items, stamp_files, stamp_texts
from sgoif.backbones.encoders import PictureEncoder, TextEncoder
from sgoif.errors import SgoifError
from sgoif.evidence import picture_sketch
from sgoif.pictures.decode import PictureError, square


class Counting:
    """Encoders that remember what they were given."""

    def __init__(self):
        self.calls = []

    def texts(self, fingerprint="t"):
        def forward(texts):
            self.calls.append(texts)
            return np.array([[len(text), text.count("e"), 1] for text in texts], np.float32)

        return TextEncoder("mine:texts", fingerprint, forward, lambda texts: sum(len(text) > 20 for text in texts))

    def pictures(self, fingerprint="p"):
        from sgoif.backbones.transforms import PictureTransform

        transform = PictureTransform(8, 8, "shortest", "bilinear", (0.5,) * 3, (0.5,) * 3)

        def forward(pictures):
            self.calls.append(len(pictures))
            return pictures  # [B, 3, 8, 8]: averaged over positions

        return PictureEncoder("mine:pictures", 8, fingerprint, transform.stack, forward)


def text_items(texts):
    return Items("texts", [f"id{i}" for i in range(len(texts))], lambda: iter(texts), stamp_texts(texts))


@pytest.fixture
def folder(tmp_path):
    files = []
    for number in range(5):
        files.append(tmp_path / f"{number}.png")
        Image.new("RGB", (10 + number, 12), (50 * number, 99, 20)).save(files[-1])
    files[3].write_bytes(b"no picture")
    return files


def picture_items(files):
    return Items("pictures", [file.name for file in files], lambda: iter(files), stamp_files(files))


def test_texts_keep_their_places_and_what_is_none_has_a_reason(monkeypatch):
    monkeypatch.setattr(driver, "_TEXTS", 3)
    texts = ["one", None, "three", " \n", "eee", 7, "half \ud800 a pair, and long enough", "e"]
    made, told = Counting(), []
    found = embed_items(text_items(texts), made.texts(), progress=lambda *what: told.append(what))
    assert found.rows[:, 1].tolist() == [1, 0, 2, 0, 3, 0, 1, 1] and found.rows.dtype == np.float32
    empty = {1: "there is no text", 3: "the text is empty", 5: "it is a int, not a text"}
    assert {i: reason for i, reason in enumerate(found.reasons) if reason} == empty
    assert not found.rows[list(empty)].any()
    assert [len(call) for call in made.calls] == [3, 2] and "half ? a pair, and long enough" in made.calls[1]
    assert found.num_truncated == 1 and found.sketches is None
    assert told == [("embedding texts", 5, 8), ("embedding texts", 8, 8)]


def test_pictures_have_rows_sketches_and_reasons(folder):
    made = Counting()
    found = embed_items(picture_items(folder), made.pictures(), batch=2)
    assert made.calls == [2, 2]
    assert [bool(reason) for reason in found.reasons] == [False, False, False, True, False]
    assert not found.rows[3].any() and not found.sketches[3].any()
    np.testing.assert_allclose(found.rows[2], [2 * 100 / 255 - 1, 2 * 99 / 255 - 1, 2 * 20 / 255 - 1], atol=1e-6)
    with Image.open(folder[4]) as picture:
        assert np.array_equal(found.sketches[4], picture_sketch(square(picture, 64)[None])[0])


def test_large_pictures_come_in_smaller_batches(folder, monkeypatch):
    monkeypatch.setattr(driver, "_PIXELS", 250)  # two of these pictures
    made = Counting()
    embed_items(picture_items(folder), made.pictures())
    assert made.calls == [3, 1] or made.calls == [2, 2]


@pytest.fixture
def embed(tmp_path):
    return lambda items, encoder: embed_items(items, encoder, cache=tmp_path / "cache")


def assert_equal(one, other):
    assert np.array_equal(one.rows, other.rows) and one.reasons == other.reasons
    assert (one.sketches is None) == (other.sketches is None) and one.num_truncated == other.num_truncated
    assert one.sketches is None or np.array_equal(one.sketches, other.sketches)


def test_a_second_call_runs_no_forward_pass(folder, embed, tmp_path, monkeypatch):
    made = Counting()
    texts = text_items(["a text is here", None, "a text that is longer than twenty", "another text"])
    asked = ((picture_items(folder), made.pictures()), (texts, made.texts()), (texts, None))
    first = [embed(*what) for what in asked]
    assert first[1].num_truncated == 1 and first[2].reasons[1] == "there is no text" and first[2].rows.any()
    monkeypatch.setattr(driver, "hashed_text_features", None)
    for one, what in zip(first, asked, strict=True):
        assert_equal(one, embed(*what))
    assert len(made.calls) == 2
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".npz"] * 3  # nothing unfinished is left


def test_what_changes_makes_a_kept_result_worthless(folder, embed):
    made = Counting()
    embed(picture_items(folder), made.pictures())
    Image.new("RGB", (9, 9), (255, 255, 255)).save(folder[3])  # mended
    assert not any(embed(picture_items(folder), made.pictures()).reasons)
    os.utime(folder[0], ns=(1, 1))  # written again
    embed(picture_items(folder), made.pictures())
    embed(picture_items(folder), made.pictures("another"))  # other weights
    embed(picture_items(folder[:4]), made.pictures("another"))
    assert made.calls == [4, 5, 5, 5, 4]
    for texts in (["ab", "c"], ["a", "bc"], ["ab", "c"]):
        embed(text_items(texts), made.texts())
    assert made.calls[5:] == [["ab", "c"], ["a", "bc"]]


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "other"])
def test_a_damaged_file_is_computed_again_and_replaced(folder, embed, tmp_path, damage, caplog):
    made = Counting()
    first = embed(picture_items(folder), made.pictures())
    (file,) = (tmp_path / "cache").iterdir()
    data = bytearray(file.read_bytes())
    if damage == "other":
        np.savez(file, rows=np.zeros((2, 3), np.float32))
    else:
        place = data.index(np.ascontiguousarray(first.rows[0]).tobytes())
        data[place] ^= 1
        file.write_bytes({"cut": data[: len(data) // 2], "flipped": data, "empty": b""}[damage])
    assert_equal(first, embed(picture_items(folder), made.pictures()))
    assert made.calls == [4, 4] and "is damaged" in caplog.text
    embed(picture_items(folder), made.pictures())
    assert made.calls == [4, 4]


def test_a_cache_that_cannot_be_written_does_not_stop_the_scan(folder, embed, tmp_path, caplog):
    (tmp_path / "cache").write_text("a file where a folder should be")
    found = embed(picture_items(folder), Counting().pictures())
    assert found.rows.any() and "not kept for the next scan" in caplog.text


def test_mistakes_are_said(folder, monkeypatch):
    made = Counting()
    for encoder in (made.texts(), None):
        with pytest.raises(SgoifError, match="embeds texts, but was given pictures"):
            embed_items(picture_items(folder), encoder)
    with pytest.raises(SgoifError, match="none of 2 texts could be read; id0: there is no text"):
        embed_items(text_items([None, ""]), made.texts())
    with pytest.raises(SgoifError, match="none of 1 pictures could be read; a: it is gone"):
        embed_items(Items("pictures", ["a"], lambda: [PictureError("it is gone")], ""), made.pictures())
    for texts, came in ((["a"], "1"), (["a", "b", "c"], "more")):
        with pytest.raises(SgoifError, match=f"2 ids were given, but {came} texts came"):
            embed_items(Items("texts", ["a", "b"], lambda texts=texts: texts, ""), made.texts())
    monkeypatch.setattr(driver, "_TEXTS", 1)
    encoder = TextEncoder("mine:f", "x", lambda texts: np.ones((1, len(texts[0])), np.float32))
    with pytest.raises(SgoifError, match="rows of 2 numbers after rows of 1"):
        embed_items(text_items(["a", "bb"]), encoder)
