"""Weights of examples: less for the doubted, and for a class as many as are truly of it; nobody is lost for good."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgoif.curriculum.weights import FLOOR, MOST_SHARED, class_gains, draw_by_weight, example_weights
from sgoif.errors import SgoifError


@given(seed=st.integers(0, 2**31), num=st.integers(1, 60), classes=st.integers(1, 6))
def test_weights_lie_between_floor_and_one_and_fall_with_doubt_within_a_class(seed, num, classes):
    rng = np.random.default_rng(seed)
    p, labels, suggested = rng.random(num), rng.integers(-1, classes, num), rng.integers(-1, classes, num)
    p[rng.random(num) < 0.2] = np.nan
    weights = example_weights(p, labels, class_gains(p, labels, suggested))
    assert weights.dtype == np.float32 and len(weights) == num
    assert (weights >= np.float32(FLOOR)).all() and weights.max() == 1
    for label in range(classes):
        mine = labels == label
        order = np.argsort(np.nan_to_num(p[mine]))
        assert (np.diff(weights[mine][order]) <= 1e-7).all()


def test_a_class_adds_up_to_the_examples_that_are_truly_of_it():
    labels = np.repeat([0, 1], [80, 20])
    p = np.zeros(100)
    p[:30] = 0.9  # of class 0, more likely of class 1
    gains = class_gains(p, labels, np.where(p > 0, 1, labels))
    weights = example_weights(p, labels, gains, floor=1e-6)
    totals = np.bincount(labels, weights=weights)
    assert totals[1] / totals[0] == pytest.approx((20 + 27) / (80 - 27), rel=1e-5)


def test_a_class_that_kept_nothing_does_not_drown_the_others():
    labels = np.repeat([0, 1], [99, 1])
    p = np.where(np.arange(100) < 50, 1.0, 0.0)
    weights = example_weights(p, labels, class_gains(p, labels, np.where(p > 0, 1, labels)))
    assert weights[99] == 1 and weights[60] == pytest.approx(1 / MOST_SHARED, rel=0.03)  # but for the floor of 50


def test_without_doubt_all_weigh_one():
    labels = np.arange(9) % 4 - 1
    gains = class_gains(np.zeros(9), labels, np.full(9, -1))
    assert (gains == 1).all() and (example_weights(np.zeros(9), labels, gains) == 1).all()
    assert example_weights(np.zeros(0), np.zeros(0, int), class_gains(*np.zeros((3, 0), int))).shape == (0,)


def test_later_doubts_leave_the_size_of_a_class_and_new_classes_alone():
    labels = np.repeat([0, 1, 2], 10)
    p = np.where(np.arange(30) < 5, 0.9, 0.0)
    weights = example_weights(p, labels, np.ones(2))
    totals = np.bincount(labels, weights=weights)
    assert totals[0] == pytest.approx(totals[1]) == pytest.approx(totals[2])


def test_a_floor_of_nothing_is_refused():
    with pytest.raises(SgoifError, match="above 0"):
        example_weights(np.zeros(2), np.zeros(2, int), np.ones(1), floor=0.0)


@given(seed=st.integers(0, 2**31), num=st.integers(1, 200))
def test_draws_are_as_many_as_a_weight_deserves(seed, num):
    rng = np.random.default_rng(seed)
    weights = rng.random(num).astype(np.float32) + 0.02
    counts = np.bincount(draw_by_weight(weights, rng), minlength=num)
    deserved = num * weights.astype(float) / weights.sum(dtype=float)
    assert counts.sum() == num
    assert (np.abs(counts - deserved) < 1 + 1e-6).all()


def test_equal_weights_draw_each_example_once_whatever_they_are():
    for weight in (1.0, 0.3, 0.02):
        drawn = draw_by_weight(np.full(10_001, weight, np.float32), np.random.default_rng(3))
        assert (np.bincount(drawn) == 1).all() and (drawn[:50] != np.arange(50)).any()
