"""Weighted means per example are order-free and skip what cannot be used."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgoif.errors import SgoifError
from sgoif.evidence import WeightedMeans


def visits(seed, count=40):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 9, count), rng.normal(size=(count, 3)), rng.random(count)


@given(st.integers(0, 2**31), st.integers(1, 39))
def test_any_order_any_split_and_a_restart_give_the_same_means(seed, cut):
    rows, values, weights = visits(seed)
    whole, first, parts = (WeightedMeans("abc") for _ in range(3))
    whole.add(rows, values, weights)
    order = np.random.default_rng(seed).permutation(len(rows))
    first.add(rows[order[:cut]], values[order[:cut]], weights[order[:cut]])
    parts.load_state_dict(first.state_dict())
    parts.add(rows[order[cut:]], values[order[cut:]], weights[order[cut:]])
    for name in "abc":
        np.testing.assert_allclose(parts.mean(name)[: len(whole)], whole.mean(name), rtol=1e-12)
    for row in np.unique(rows):
        mine = rows == row
        np.testing.assert_allclose(whole.mean("b")[row], np.average(values[mine, 1], weights=weights[mine]))


def test_unusable_visits_add_nothing_and_unseen_rows_are_nan():
    means = WeightedMeans(["x"])
    means.add([0, 0, 2], [[1.0], [np.nan], [7.0]], [1.0, 1.0, 0.0])
    np.testing.assert_array_equal(means.mean("x"), [1.0, np.nan, np.nan])
    with pytest.raises(SgoifError, match=r"values need the shape \(1, 1\)"):
        means.add([0], [[1.0, 2.0]], 1.0)
