"""Embeddings of a scan: pictures of a source, texts with and without a model, kept beside the run."""

import numpy as np
import pytest
from PIL import Image

from sgoif.backbones.encoders import PictureEncoder, TextEncoder
from sgoif.backbones.transforms import PictureTransform
from sgoif.evidence import EMBEDDINGS_NEARLY_SAME, PICTURES_NEARLY_SAME, hash_ids
from sgoif.scanning import no_progress
from sgoif.scanning.embeddings import cache_beside, embed_pictures, embed_texts
from sgoif.scanning.examples import ScanExamples, read_text_embeddings
from sgoif.sources.labelled import open_source


@pytest.fixture
def source(tmp_path):
    for name in ("ant", "bee"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (8, 8), (80 * number, 9, 9)).save(tmp_path / "data" / name / f"{number}.png")
    (tmp_path / "data" / "bee" / "broken.png").write_bytes(b"no picture")
    return open_source(tmp_path / "data")


def counting(calls):
    def forward(pictures):
        calls.append(len(pictures))
        return pictures

    transform = PictureTransform(8, 8, "shortest", "bilinear", (0.0,) * 3, (1.0,) * 3)
    return PictureEncoder("mine:make", 8, "fingerprint", transform.stack, forward)


def test_a_picture_that_cannot_be_read_has_a_reason(source):
    found = embed_pictures(source, np.arange(7), counting([]))
    broken = list(source.ids).index("bee/broken.png")
    assert "cannot identify image file" in found.reasons[broken] and "0x" not in found.reasons[broken]
    assert [bool(reason) for reason in found.reasons] == [i == broken for i in range(7)]
    assert found.nearly_same == PICTURES_NEARLY_SAME and found.sketches.shape == (7, 4)


def test_kept_embeddings_serve_until_a_picture_changes(source, tmp_path):
    calls = []
    run = lambda: embed_pictures(source, np.arange(7), counting(calls), cache=tmp_path / "cache")  # noqa: E731
    first, again = run(), run()
    assert calls == [6] and again.reasons == first.reasons and np.array_equal(again.rows, first.rows)
    Image.new("RGB", (9, 9), (255, 255, 255)).save(tmp_path / "data" / "bee" / "broken.png")  # mended
    assert not any(run().reasons) and calls == [6, 7]


TEXTS = ["a lost card", "a lost card", None, "a late transfer", "late transfers"]


def test_texts_have_sketches_of_their_embeddings():
    found = embed_texts(list("abcde"), lambda: TEXTS, None)
    assert found.nearly_same == EMBEDDINGS_NEARLY_SAME and found.reasons[2] == "there is no text"
    assert np.array_equal(found.sketches[0], found.sketches[1])  # copies
    assert len(np.unique(found.sketches, axis=0)) == 4
    assert found.sketches[2, 0] == hash_ids(np.array(["c"])).view(np.int64)[0]  # passes for a copy of none


@pytest.mark.parametrize("has_files", [False, True])
def test_texts_are_embedded_again_when_they_or_their_file_change(tmp_path, has_files):
    calls, table = [], tmp_path / "table.csv"
    table.write_text("one")

    def forward(texts):
        calls.append(len(texts))
        return np.ones((len(texts), 2), np.float32)

    def run(texts):
        encoder = TextEncoder("mine:make", "fingerprint", forward)
        files = [table] if has_files else None
        return embed_texts(list("abcde"), lambda: texts, encoder, files=files, cache=tmp_path / "cache")

    assert run(TEXTS).reasons == run(TEXTS).reasons and calls == [4]
    table.write_text("two and more")
    run([*TEXTS[:2], "a text", *TEXTS[3:]])
    assert calls == [4, 5]


def test_examples_without_a_text_are_left_out_and_named(tmp_path):
    ids = np.array(list("abcde"))
    found = ScanExamples(ids, np.zeros(5, np.int64), np.arange(5), np.zeros(5, bool))
    out = str(tmp_path / "runs" / "first")
    rows, kept, num_truncated = read_text_embeddings(lambda: TEXTS, found, None, out=out, progress=no_progress)
    assert len(rows) == 4 and kept.ids.tolist() == list("abde") and num_truncated == 0
    assert kept.unreadable == (("c", "there is no text"),)
    assert kept.sketches is not None and kept.sketches.nearly_same == EMBEDDINGS_NEARLY_SAME
    assert [path.suffix for path in cache_beside(out).iterdir()] == [".npz"]
    assert cache_beside("s3://bucket/run") is None and cache_beside(None) is None
