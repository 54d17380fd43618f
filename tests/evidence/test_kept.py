"""Predictions of few classes: what Bayes says of them is what it says of whole predictions."""

import numpy as np
import pytest

from sgoif.evidence import KeptPredictions, LargestPredictions, LikelyOthers
from sgoif.evidence.counts import recover_true


def predictions(classes, count=40, seed=0):
    """Whole predictions that are even beside the given class and three others, and what is kept of them."""
    rng = np.random.default_rng(seed)
    given = rng.integers(0, classes, count)
    p = rng.dirichlet(np.full(classes, 0.4), count) + 1e-3
    others = LargestPredictions.of(p).others(np.arange(count), given)
    named = np.column_stack([given, others.labels])
    is_named = np.zeros((count, classes), bool)
    rows, places = np.nonzero(named >= 0)
    is_named[rows, named[rows, places]] = True
    left = np.where(is_named, 0, p)
    p = np.where(is_named, p, left.sum(1, keepdims=True) / np.maximum((~is_named).sum(1, keepdims=True), 1))
    p /= p.sum(1, keepdims=True)
    own = p[np.arange(count), given]
    others = LikelyOthers(others.labels, np.where(others.labels >= 0, np.take_along_axis(p, others.labels, 1), 0))
    return p, KeptPredictions.of(own, given, others, classes)


@pytest.mark.parametrize("classes", [2, 3, 4, 5, 12, 200])
def test_noise_is_undone_as_for_whole_predictions(classes):
    """Any noise where every class has a name, spread noise where others have none."""
    p, kept = predictions(classes)
    others = np.random.default_rng(1).dirichlet(np.ones(classes), classes) if classes <= 4 else np.ones(1) / classes
    transition = 0.7 * np.eye(classes) + 0.3 * others
    rows, given = np.arange(len(p)), kept.given
    joint = recover_true(p, transition) * transition[:, given].T
    expected = joint[rows, given] / joint.sum(1)
    found = kept.joint(transition)
    np.testing.assert_allclose(found[:, 0] / found.sum(1), expected, rtol=1e-3, atol=1e-6)


def test_a_margin_sets_the_odds_of_the_given_class_and_nothing_else():
    _, kept = predictions(12)
    found = kept.with_margin(np.full(40, np.log(3)))
    np.testing.assert_allclose(found.p[:, 0], 0.75)
    np.testing.assert_allclose(found.p.sum(1), 1)
    others = kept.p[:, 1:] / kept.p[:, 1:].sum(1, keepdims=True)
    np.testing.assert_allclose(found.p[:, 1:] / 0.25, others, rtol=1e-6)


def test_the_most_probable_class_has_a_name():
    p, kept = predictions(200)
    label, probability = kept.most_probable()
    np.testing.assert_array_equal(label, p.argmax(1))
    np.testing.assert_allclose(probability, p.max(1), rtol=1e-4)
    assert (kept.lower(50).most_probable()[0] != kept.given).all()
