"""Text features without a model: the same each time, in blocks, with nothing for empty texts."""

import numpy as np
import pytest

from sgoif.backbones import hashed, hashed_text_features
from sgoif.errors import SgoifError

TEXTS = [
    *(f"my card number {i} was declined at the shop" for i in range(20)),
    *(f"the transfer of {i} euros has not arrived" for i in range(20)),
    "",
    "   ",
    "日本語のカードが拒否されました",
    "日本語のカードがありません",
]


def features(texts=TEXTS, **options):
    return hashed_text_features(lambda: iter(texts), len(texts), **options)


def test_rows_have_length_one_and_empty_texts_none():
    rows = features()
    assert rows.dtype == np.float32 and rows.shape == (44, 44)
    length = np.linalg.norm(rows, axis=1)
    assert not rows[40:42].any() and np.allclose(np.delete(length, [40, 41]), 1, atol=1e-5)
    likeness = rows @ rows.T
    assert likeness[0, 1:20].min() > 0.5 > likeness[0, 20:40].max()
    assert likeness[42, 43] > 0.2 > likeness[42, :40].max()


def test_blocks_and_repetitions_change_nothing(monkeypatch):
    rows = features()
    assert np.array_equal(features(), rows)
    monkeypatch.setattr(hashed, "_BLOCK_TEXTS", 7)
    np.testing.assert_allclose(features(), rows, atol=1e-5)
    monkeypatch.setattr(hashed, "_BLOCK_CHARACTERS", 50)
    np.testing.assert_allclose(features(), rows, atol=1e-5)


def test_dimensions_and_sample_are_bounded():
    for options, width in (({"dimensions": 5}, 5), ({"max_sample": 12}, 12)):
        rows = features(**options)
        assert rows.shape == (44, width) and np.isfinite(rows).all()


def test_likeness_is_that_of_tf_idf_where_nothing_is_cut_off():
    """With as many dimensions as texts, the SVD is a rotation of tf-idf."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts = TEXTS[:40]
    parts = [
        TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"(?u)\b\w+\b", sublinear_tf=True, min_df=2),
        TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 5), sublinear_tf=True, min_df=2),
    ]
    expected = sum(part @ part.T for part in (one.fit_transform(texts).toarray() for one in parts)) / 2
    rows = features(texts, dimensions=40).astype(np.float64)
    np.testing.assert_allclose(rows @ rows.T, expected, atol=1e-3)  # float32, and two buckets may share a number


def test_mistakes_are_said():
    for count in (3, 5):
        with pytest.raises(SgoifError, match=f"count says {count} texts, but {'more' if count < 4 else '4'} came"):
            hashed_text_features(lambda: iter(TEXTS[:4]), count)
    with pytest.raises(SgoifError, match="no two of 3 texts share a word"):
        features(["", " ", "."])
    with pytest.raises(SgoifError, match="there are no texts"):
        features([])
    assert features(["one"]).shape == (1, 1)
