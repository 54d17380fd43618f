"""Runners-up, summed over visits."""

import numpy as np

from sgoif.evidence import LikelyClasses


def visits(seed=0, count=400, rows=20, classes=6):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(classes, 0.5), count)
    row, given = rng.integers(0, rows, count), rng.integers(0, classes, count)
    own = p[np.arange(count), given]
    others = np.where(np.arange(classes) == given[:, None], 0, p)
    usable = rng.random(count) > 0.1
    return row, own, np.log(own) - np.log(others.max(1)), others.argmax(1), usable


def test_sums_are_the_means_of_the_runners_up_over_usable_visits():
    row, own, margin, runner_up, usable = visits()
    likely = LikelyClasses(6)
    likely.add(row, own, margin, runner_up, usable)
    dense = np.zeros((20, 6))
    np.add.at(dense, (row, runner_up), usable * own * np.exp(-margin))
    dense /= np.bincount(row[usable], minlength=20)[:, None]
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
    likely.add([0, 1, 2], [np.nan, 0.5, 0.5], [0.0, np.nan, 0.0], [1, 1, 1], [True, True, False])
    assert (likely.top(3).labels == -1).all()
