"""Mean predictions of which the largest are kept."""

import numpy as np
import pytest

from sgoif.errors import SgoifError
from sgoif.evidence import LargestPredictions, PredictionSums


def looks(num_classes, count=60, num_looks=12, seed=0):
    """What a model says of some examples while it learns: from nearly even to rather sure, with noise at each look."""
    rng = np.random.default_rng(seed)
    final = 2 * rng.normal(size=(count, num_classes))
    for look in range(1, num_looks + 1):
        rows = rng.permutation(count)[: count // 2]
        logits = look / num_looks * final[rows] + 0.5 * rng.normal(size=(len(rows), num_classes))
        p = np.exp(logits)
        yield rows, p / p.sum(1, keepdims=True), 0.2 + look / num_looks


def add_up(num_classes, **settings):
    """The sums, beside a dense table of means."""
    sums, dense, weights = PredictionSums(60, num_classes), np.zeros((60, num_classes)), np.zeros(60)
    for rows, p, weight in looks(num_classes, **settings):
        sums.add(rows, p, weight)
        dense[rows] += weight * p
        weights[rows] += weight
    return sums, dense / np.maximum(weights, 1e-12)[:, None]


@pytest.mark.parametrize("num_classes", [2, 4, 64])
def test_of_few_classes_all_means_are_kept(num_classes):
    sums, dense = add_up(num_classes)
    found = sums.mean()
    np.testing.assert_allclose(np.take_along_axis(dense, found.labels, 1), found.probabilities, atol=1e-7)
    assert (np.sort(found.labels, 1) == np.arange(num_classes)).all()
    assert (np.diff(found.probabilities, axis=1) <= 0).all()


def test_of_many_classes_the_most_probable_are_those_of_a_dense_table():
    sums, dense = add_up(1_000)
    given = np.random.default_rng(1).integers(0, 1_000, 60)
    given[::2] = dense[::2].argmax(1)
    found = sums.mean().others(np.arange(60), given)
    expected = LargestPredictions.of(dense)  # of one table nothing is lost but the smallest
    expected = expected.others(np.arange(60), given)
    assert (found.labels[:, 0] == expected.labels[:, 0]).mean() > 0.9
    # what is kept lacks only what was predicted before a class came among the kept ones
    np.testing.assert_allclose(found.probabilities, expected.probabilities, atol=0.02)
    at = np.take_along_axis(dense, found.labels, 1)
    assert (found.probabilities <= at + 1e-6).all() and (found.probabilities > 0.7 * at).all()
    # 60 examples of 1,000 classes would be 480 kB
    assert sum(value.nbytes for value in sums.state_dict().values()) < 15_000


def test_others_are_never_the_given_class():
    rng = np.random.default_rng(3)
    p, given = rng.dirichlet(np.ones(4), 50), rng.integers(0, 4, 50)
    found = LargestPredictions.of(p).others(np.arange(50), given)
    assert (np.sort(np.column_stack([given, found.labels]), axis=1) == np.arange(4)).all()
    np.testing.assert_allclose(found.probabilities, np.take_along_axis(p, found.labels, 1), rtol=1e-6)
    two = LargestPredictions.of(p[:, :2]).others(np.arange(50), given % 2)
    assert (two.labels == np.column_stack([1 - given % 2, np.full((50, 2), -1)])).all()


def test_examples_that_were_not_seen_have_no_prediction():
    sums = PredictionSums(3, 100)
    sums.add(np.array([1]), np.full((1, 100), 0.01), 1.0)
    found = sums.mean().others(np.arange(3), np.zeros(3, int))
    assert (found.labels[[0, 2]] == -1).all() and (found.labels[1] > 0).all()


@pytest.mark.parametrize("num_classes", [4, 200])
def test_sums_are_continued_from_a_state(num_classes):
    seen = list(looks(num_classes))
    whole, half, resumed = (PredictionSums(60, num_classes) for _ in range(3))
    for place, (rows, p, weight) in enumerate(seen):
        whole.add(rows, p, weight)
        if place == 5:
            resumed.load_state_dict(half.state_dict())
        (half if place < 5 else resumed).add(rows, p, weight)
    np.testing.assert_array_equal(whole.mean().labels, resumed.mean().labels)
    np.testing.assert_array_equal(whole.mean().probabilities, resumed.mean().probabilities)


def test_classes_are_counted():
    with pytest.raises(SgoifError, match="at least 1"):
        PredictionSums(3, 0)
