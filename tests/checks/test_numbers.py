"""Intervals, tails and selections on cases that are known."""

import numpy as np
import pytest

from sgoif.checks.numbers import select_discoveries, share_interval, tail_p_values


def test_an_interval_covers_the_share_that_it_was_drawn_from():
    rng = np.random.default_rng(0)
    drawn = rng.binomial(200, 0.03, 2_000)
    covered = [low <= 0.03 <= high for low, high in (share_interval(int(n), 200) for n in drawn)]
    assert 0.93 <= np.mean(covered) <= 0.99  # 95% asked


@pytest.mark.parametrize("kind", ["normal", "exponential", "gamma"])
def test_ordinary_tails_are_seldom_selected(kind):
    rng = np.random.default_rng(1)
    draws = {
        "normal": rng.standard_normal,
        "exponential": rng.exponential,
        "gamma": lambda size: rng.gamma(5, size=size),
    }
    alarms = [select_discoveries(tail_p_values(draws[kind](size=2_000)), 0.1).any() for _ in range(40)]
    assert np.mean(alarms) <= 0.25  # 0.1 asked; an exponential tail fitted to 800 values gives 0.125


def test_outliers_do_not_hide_themselves_or_each_other():
    rng = np.random.default_rng(2)
    values = np.concatenate([rng.standard_normal(2_000), rng.normal(9, 0.1, 100)])  # 5% at one place
    chosen = select_discoveries(tail_p_values(values), 0.1)
    assert chosen[2_000:].all() and chosen[:2_000].sum() <= 10


def test_equal_values_have_no_tail_and_nothing_is_selected_of_nothing():
    assert (tail_p_values(np.ones(300)) == 1).all()
    assert (tail_p_values(np.r_[np.ones(299), 5.0]) == 1).all()
    assert select_discoveries(np.zeros(0), 0.1).shape == (0,)
