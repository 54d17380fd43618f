"""Predictions of which some classes are kept, beside whole ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgoif.errors import SgoifError
from sgoif.evidence import LikelyOthers
from sgoif.judging.predictions import TopPredictions, log_odds, read_columns, set_log_odds


def draw(seed, count=30, classes=5, scale=3.0):
    rng = np.random.default_rng(seed)
    scores = scale * rng.normal(size=(count, classes))
    return scores - np.logaddexp.reduce(scores, axis=1, keepdims=True), rng.integers(0, classes, count)


@given(seed=st.integers(0, 2**31), classes=st.integers(2, 30), scale=st.floats(0.1, 6))
def test_log_odds_are_those_of_a_dense_softmax(seed, classes, scale):
    logs, labels = draw(seed, classes=classes, scale=scale)
    p = np.exp(logs)
    others = np.where(np.arange(classes) == labels[:, None], 0, p).sum(1)
    own = p[np.arange(len(p)), labels]
    np.testing.assert_allclose(log_odds(logs, labels), np.log(own) - np.log(others), rtol=1e-9, atol=1e-9)


def test_log_odds_of_the_surest_are_finite():
    """By the class's own probability alone they would be infinite: it is 1 in double precision."""
    found = log_odds(np.array([[0.0, -60.0, -61.0]]), np.array([0]))
    assert found[0] == pytest.approx(60 - np.log1p(np.exp(-1)))


@given(seed=st.integers(0, 2**31), classes=st.integers(2, 30))
def test_other_log_odds_move_the_given_class_alone(seed, classes):
    logs, labels = draw(seed, classes=classes)
    odds = 4 * np.random.default_rng(seed).normal(size=len(labels))
    found = np.exp(set_log_odds(logs, labels, odds))
    own, before = found[np.arange(len(labels)), labels], np.exp(logs)
    np.testing.assert_allclose(own, 1 / (1 + np.exp(-odds)), rtol=1e-9)
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-9)
    is_other = np.arange(classes) != labels[:, None]
    shares, expected = (
        np.where(is_other, p, 0) / np.where(is_other, p, 0).sum(1, keepdims=True) for p in (found, before)
    )
    np.testing.assert_allclose(shares, expected, rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(log_odds(np.log(found), labels), odds, rtol=1e-6, atol=1e-6)


def test_all_classes_are_kept_as_they_are():
    logs, _ = draw(0)
    found = TopPredictions.of(logs)
    np.testing.assert_allclose(found.logs(slice(None)), logs, atol=1e-9)
    np.testing.assert_allclose(found.take([3, 1]).logs([1]), logs[[1]], atol=1e-9)
    assert len(found) == 30 and found.num_classes == 5


@pytest.mark.parametrize("width", [1, 2, 4])
def test_of_some_classes_the_most_probable_are_kept_and_the_rest_is_even(width):
    logs, _ = draw(1)
    found, p = np.exp(TopPredictions.of(logs, width).logs(slice(None))), np.exp(logs)
    expected = p.copy()
    for row in expected:
        least = np.argsort(-row)[width:]
        row[least] = row[least].mean()
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_what_an_engine_saw_of_the_given_class_and_others():
    given_label, p_given = np.array([2, 0, 1]), np.array([0.7, 0.2, 1.0])
    others = LikelyOthers(np.array([[0, 1], [0, 3], [-1, -1]]), np.array([[0.2, 0.05], [0.5, 0.3], [0.0, 0.0]]))
    found = np.exp(TopPredictions.of_given(given_label, p_given, others, 4).logs(np.arange(3)))
    np.testing.assert_allclose(found[0], [0.2, 0.05, 0.7, 0.05], rtol=1e-6)
    # a runner-up that is the given class says nothing more: what is left goes to the two others alike
    np.testing.assert_allclose(found[1], [0.2, 0.25, 0.25, 0.3], rtol=1e-6)
    np.testing.assert_allclose(found[2], [0, 1, 0, 0], atol=1e-8)
    assert np.isfinite(np.log(found)).all()


def test_columns_of_lists():
    logs, _ = draw(2, count=4)
    found = read_columns({"log_p": list(logs)}, "log_p", num_classes=5)
    np.testing.assert_allclose(found.logs(slice(None)), logs, atol=1e-9)
    with pytest.raises(SgoifError, match="'log_p' has 5 numbers a row, where there are 3 classes"):
        read_columns({"log_p": list(logs)}, "log_p", num_classes=3)
