"""Weighted means per example are order-free and skip what cannot be used."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgoif.errors import SgoifError
from sgoif.evidence import VisitMeans, WeightedMeans


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


def test_usable_visits_count_alike_for_the_models_own_signals_and_by_the_gate_for_influence():
    nan = np.nan
    columns = {
        "loss": [1.0, 2.0, 6.0, 50.0],
        "margin": [4.0, 2.0, nan, 50.0],  # the third has a soft target, the last cannot be used
        "p_given": [0.2, 0.4, nan, 0.9],
        "harm": [3.0, 7.0, 5.0, 50.0],
        "worst": [3.0, 7.0, nan, 50.0],
    }
    means = VisitMeans(tuple(columns))
    values = {name: np.array(column) for name, column in columns.items()}
    means.add([1, 1, 1, 1], values, usable=[True, True, True, False], gate=[0.0, 0.5, 0.5, 0.0])
    found = {name: means.mean(name)[1] for name in columns}
    assert found == pytest.approx({"loss": 3, "margin": 3, "p_given": 0.3, "harm": 6, "worst": 7})
    again = VisitMeans(tuple(columns))
    again.load_state_dict(means.state_dict())
    again.reserve(5)
    assert again.mean("margin")[1] == found["margin"] and np.isnan(again.mean("margin")[[0, 2, 3, 4]]).all()


def test_where_the_gate_was_shut_at_every_visit_influence_is_unknown_and_the_loss_is_known():
    means = VisitMeans(("loss", "harm"))
    means.add([0, 0], {"loss": np.array([1.0, 3.0]), "harm": np.ones(2)}, usable=[True, True], gate=[0.0, 0.0])
    assert means.mean("loss").tolist() == [2.0] and np.isnan(means.mean("harm")).all()
