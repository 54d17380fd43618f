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


def test_a_second_call_runs_no_forward_pass(folder, tmp_path):
    made = Counting()
    first = embed_items(picture_items(folder), made.pictures(), cache=tmp_path / "cache")
    again = embed_items(picture_items(folder), made.pictures(), cache=tmp_path / "cache")
    assert made.calls == [4]
    assert np.array_equal(again.rows, first.rows) and np.array_equal(again.sketches, first.sketches)
    assert again.reasons == first.reasons
    texts = ["a", None, "a text that is longer than twenty"]
    first = embed_items(text_items(texts), made.texts(), cache=tmp_path / "cache")
    again = embed_items(text_items(texts), made.texts(), cache=tmp_path / "cache")
    assert len(made.calls) == 2 and again.num_truncated == first.num_truncated == 1
    assert again.reasons == first.reasons and again.sketches is None
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".npz", ".npz"]  # nothing unfinished is left


def test_what_changes_makes_a_kept_result_worthless(folder, tmp_path):
    made = Counting()
    run = lambda items, encoder: embed_items(items, encoder, cache=tmp_path / "cache")  # noqa: E731
    run(picture_items(folder), made.pictures())
    Image.new("RGB", (9, 9), (255, 255, 255)).save(folder[3])  # mended
    assert not any(run(picture_items(folder), made.pictures()).reasons)
    os.utime(folder[0], ns=(1, 1))  # written again
    run(picture_items(folder), made.pictures())
    run(picture_items(folder), made.pictures("another"))  # other weights
    run(picture_items(folder[:4]), made.pictures("another"))
    assert made.calls == [4, 5, 5, 5, 4]
    for texts in (["ab", "c"], ["a", "bc"], ["ab", "c"]):
        run(text_items(texts), made.texts())
    assert made.calls[5:] == [["ab", "c"], ["a", "bc"]]


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "other"])
def test_a_damaged_file_is_computed_again_and_replaced(folder, tmp_path, damage, caplog):
    made = Counting()
    first = embed_items(picture_items(folder), made.pictures(), cache=tmp_path / "cache")
    (file,) = (tmp_path / "cache").iterdir()
    data = bytearray(file.read_bytes())
    if damage == "other":
        np.savez(file, rows=np.zeros((2, 3), np.float32))
    else:
        place = data.index(np.ascontiguousarray(first.rows[0]).tobytes())
        data[place] ^= 1
        file.write_bytes({"cut": data[: len(data) // 2], "flipped": data, "empty": b""}[damage])
    again = embed_items(picture_items(folder), made.pictures(), cache=tmp_path / "cache")
    assert made.calls == [4, 4] and np.array_equal(again.rows, first.rows) and "is damaged" in caplog.text
    embed_items(picture_items(folder), made.pictures(), cache=tmp_path / "cache")
    assert made.calls == [4, 4]


def test_an_interrupted_write_leaves_nothing(folder, tmp_path, monkeypatch):
    def stop(file, **arrays):
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(driver.np, "savez", stop)
    with pytest.raises(KeyboardInterrupt):
        embed_items(picture_items(folder), Counting().pictures(), cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_cache_that_cannot_be_written_does_not_stop_the_scan(folder, tmp_path, caplog):
    (tmp_path / "cache").write_text("a file where a folder should be")
    found = embed_items(picture_items(folder), Counting().pictures(), cache=tmp_path / "cache")
    assert found.rows.any() and "not kept for the next scan" in caplog.text


def test_texts_without_a_model_are_kept_too(tmp_path, monkeypatch):
    texts = ["the card was declined", "the card is lost", "", "the transfer is late", "my transfer is late"]
    first = embed_items(text_items(texts), None, cache=tmp_path)
    assert first.reasons[2] == "the text is empty" and not first.rows[2].any()
    monkeypatch.setattr(driver, "hashed_text_features", None)
    again = embed_items(text_items(texts), None, cache=tmp_path)
    assert np.array_equal(again.rows, first.rows) and again.reasons == first.reasons


def test_mistakes_are_said(folder):
    made = Counting()
    with pytest.raises(SgoifError, match="embeds texts, but was given pictures"):
        embed_items(picture_items(folder), made.texts())
    with pytest.raises(SgoifError, match="embeds texts, but was given pictures"):
        embed_items(picture_items(folder), None)
    with pytest.raises(SgoifError, match="none of 2 texts could be read; id0: there is no text"):
        embed_items(text_items([None, ""]), made.texts())
    with pytest.raises(SgoifError, match="none of 1 pictures could be read; a: it is gone"):
        embed_items(Items("pictures", ["a"], lambda: [PictureError("it is gone")], ""), made.pictures())
    for texts, came in ((["a"], "1"), (["a", "b", "c"], "more")):
        with pytest.raises(SgoifError, match=f"2 ids were given, but {came} texts came"):
            embed_items(Items("texts", ["a", "b"], lambda texts=texts: texts, ""), made.texts())


def test_rows_of_two_lengths_are_refused(monkeypatch):
    monkeypatch.setattr(driver, "_TEXTS", 1)
    encoder = TextEncoder("mine:f", "x", lambda texts: np.ones((1, len(texts[0])), np.float32))
    with pytest.raises(SgoifError, match="rows of 2 numbers after rows of 1"):
        embed_items(text_items(["a", "bb"]), encoder)
