"""What was learnt by heart is taken off: never added, and no two labels change places."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgoif.judging.memory import match_odds, match_order


def draw(seed, count=500):
    """Log odds of labels: some wrong, most right."""
    rng = np.random.default_rng(seed)
    return rng.normal(4, 2, count) - 7 * (rng.random(count) < 0.2)


@given(seed=st.integers(0, 2**31), raised=st.floats(-4, 6), stretched=st.floats(0.3, 3))
def test_moved_log_odds_keep_their_order_and_never_rise(seed, raised, stretched):
    unseen = draw(seed)
    seen = stretched * draw(seed + 1, 800) + raised
    asked = np.sort(np.append(seen, [-50.0, 50.0]))
    found = match_odds(seen, unseen)(asked)
    assert (found <= asked + 1e-9).all()
    assert (np.diff(found) >= -1e-9).all()


@pytest.mark.parametrize("raised", [0.5, 3.0])
def test_a_constant_that_training_has_added_is_taken_off(raised):
    odds = draw(0)
    found = match_odds(odds + raised, odds)(odds + raised)
    np.testing.assert_allclose(found, odds, atol=1e-9)


def test_log_odds_that_are_below_those_of_held_out_rows_stay():
    odds = draw(0)
    for unseen in (odds, odds + 3):
        np.testing.assert_allclose(match_odds(odds, unseen)(odds), odds, atol=1e-9)


def test_an_order_takes_the_values_of_held_out_rows():
    unseen, rng = draw(0), np.random.default_rng(1)
    order = rng.exponential(size=2000)
    found = match_order(order, unseen)(order)
    assert (np.argsort(found) == np.argsort(order)).all()
    at = np.linspace(0.02, 0.98, 25)
    np.testing.assert_allclose(np.quantile(found, at), np.quantile(unseen, at), atol=0.25)


def test_equal_places_in_an_order_have_equal_values():
    order = np.repeat([0.0, 1.0, 2.0], [300, 100, 600])
    found = match_order(order, draw(0))(order)
    assert np.isfinite(found).all() and len(np.unique(found)) == 3 and (np.diff(found) >= 0).all()
