"""Runners-up, summed over visits."""

import numpy as np
import pytest

from sgoif.evidence import LikelyClasses, LikelyOthers, best_others


def visits(seed=0, count=400, rows=20, classes=6):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(classes, 0.5), count)
    row, given = rng.integers(0, rows, count), rng.integers(0, classes, count)
    others, other = best_others(p, given[:, None])
    own = p[np.arange(count), given]
    weight = rng.random(count) * (rng.random(count) > 0.1)
    return row, own, np.log(own) - np.log(other[:, 0]), others[:, 0], weight


def test_sums_are_the_weighted_means_of_the_runners_up():
    row, own, margin, runner_up, weight = visits()
    likely = LikelyClasses(6)
    likely.add(row, own, margin, runner_up, weight)
    dense = np.zeros((20, 6))
    np.add.at(dense, (row, runner_up), weight * own * np.exp(-margin))
    dense /= np.bincount(row, weights=weight, minlength=20)[:, None]
    found = likely.top(20)
    expected = -np.sort(-dense, axis=1)[:, :3]
    np.testing.assert_allclose(found.probabilities, expected, atol=1e-5)
    known = found.labels >= 0
    np.testing.assert_allclose(
        np.take_along_axis(dense, found.labels.clip(0), 1)[known], found.probabilities[known], atol=1e-5
    )


def test_the_order_of_visits_and_a_restart_do_not_matter():
    columns = visits(seed=1)
    once, turned = LikelyClasses(6), LikelyClasses(6)
    once.add(*columns)
    half = len(columns[0]) // 2
    turned.add(*(values[half:] for values in columns))
    resumed = LikelyClasses(6)
    resumed.load_state_dict(turned.state_dict())
    resumed.add(*(values[:half] for values in columns))
    np.testing.assert_array_equal(once.top(20).labels, resumed.top(20).labels)
    np.testing.assert_array_equal(once.top(20).probabilities, resumed.top(20).probabilities)


def test_visits_that_say_nothing_add_nothing():
    likely = LikelyClasses(3)
    likely.add([0, 1, 2], [np.nan, 0.5, 0.5], [0.0, np.nan, 0.0], [1, 1, 1], [1.0, 1.0, 0.0])
    assert (likely.top(3).labels == -1).all()


def test_a_prediction_is_whole():
    rng = np.random.default_rng(2)
    p = rng.dirichlet(np.ones(5), 30)
    given = rng.integers(0, 5, 30)
    labels, other = best_others(p, given[:, None])
    pad = ((0, 0), (0, 2))
    others = LikelyOthers(np.pad(labels, pad, constant_values=-1), np.pad(other, pad))
    whole = others.spread(p[np.arange(30), given], given, 5)
    np.testing.assert_allclose(whole.sum(1), 1, atol=1e-6)
    np.testing.assert_allclose(whole[np.arange(30), given], p[np.arange(30), given], atol=1e-6)
    np.testing.assert_allclose(whole[np.arange(30), labels[:, 0]], other[:, 0], atol=1e-6)


def test_the_best_other_class_is_never_the_label_tried():
    rng = np.random.default_rng(3)
    p = rng.dirichlet(np.ones(4), 50)
    tried = np.tile(np.arange(4), (50, 1))
    labels, found = best_others(p, tried)
    for label in range(4):
        rest = np.delete(p, label, axis=1)
        assert found[:, label] == pytest.approx(rest.max(1))
        assert (labels[:, label] != label).all()
