"""Probabilities after decisions are the posterior's mode; the error rate is unbiased and its interval holds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from sgoif.review.estimate import Unlisted, count_left_over, error_rate, recalibrate, wilson


def posterior_mode(p, pair, rows, wrong, num_pairs):
    """The same by a general optimiser."""
    x, y = np.log(p / (1 - p)), wrong.astype(float)

    def negative(theta):
        z = x[rows] + theta[0] + theta[1:][pair[rows]]
        return np.logaddexp(0, z).sum() - (y * z).sum() + theta[0] ** 2 / 2 + 2 * (theta[1:] ** 2).sum()

    found = minimize(negative, np.zeros(1 + num_pairs), method="BFGS", options={"gtol": 1e-8}).x
    return 1 / (1 + np.exp(-(x + found[0] + found[1:][pair])))


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**31), count=st.integers(1, 80), pairs=st.integers(1, 5), shift=st.floats(-4, 4))
def test_the_fit_is_the_mode_of_the_posterior(seed, count, pairs, shift):
    rng = np.random.default_rng(seed)
    p, pair = rng.uniform(0.02, 0.98, count), rng.integers(0, pairs, count)
    rows = rng.permutation(count)[: rng.integers(0, count + 1)]
    wrong = rng.random(len(rows)) < 1 / (1 + np.exp(-(np.log(p / (1 - p))[rows] + shift)))
    found = recalibrate(p, pair, rows, wrong)
    expected = posterior_mode(p, pair, rows, wrong, pairs)
    rest = ~found.is_decided
    np.testing.assert_allclose(found.p[rest], expected[rest], atol=2e-5)  # the optimiser's own error is near 1e-6
    assert (found.p[rows] == wrong).all()


def test_a_list_that_is_far_off_is_mended_without_leaping_to_and_fro():
    p, pair = np.full(2000, 1e-6), np.zeros(2000, int)
    found = recalibrate(p, pair, np.arange(1000), np.ones(1000, bool))
    assert found.p[1000:].min() > 0.9
    right = recalibrate(1 - p, pair, np.arange(1000), np.zeros(1000, bool))
    assert right.p[1000:].max() < 0.1


def test_what_was_not_judged_stays_unknown_unless_decided():
    p = np.array([np.nan, np.nan, 0.5, 0.5])
    found = recalibrate(p, np.zeros(4, int), np.array([0, 2]), np.array([True, True]))
    assert found.p[0] == 1 and np.isnan(found.p[1]) and found.p[3] > 0.5
    assert count_left_over(found)[0] == pytest.approx(found.p[3])


def test_the_number_left_over_holds_what_is_true():
    rng = np.random.default_rng(0)
    inside, trials = 0, 300
    for _ in range(trials):
        p, pair = rng.beta(2, 1, 400), rng.integers(0, 6, 400)
        a, b = rng.normal(), rng.normal(0, 0.5, 6)
        truth = rng.random(400) < 1 / (1 + np.exp(-(np.log(p / (1 - p)) + a + b[pair])))
        expected, deviation = count_left_over(recalibrate(p, pair, np.arange(60), truth[:60]))
        inside += abs(truth[60:].sum() - expected) < 1.645 * deviation
    assert 0.85 <= inside / trials <= 0.97


@pytest.mark.parametrize(("rate", "sampled"), [(0.2, 100), (0.08, 60), (0.05, 200)])
def test_the_error_rate_is_unbiased_and_its_interval_holds(rate, sampled):
    """Of examples with probabilities that are wrong by a factor, as those of a run may be."""
    rng = np.random.default_rng(1)
    truth = rng.random(20_000) < rate
    p = 1 / (1 + np.exp(-(1.6 * (rng.normal(0, 1, 20_000) + 2.5 * truth) - 3)))
    order = np.argsort(-p)
    listed, rest = order[:500], order[500:]
    found = recalibrate(p[listed], np.zeros(500, int), np.arange(500), truth[listed])
    whole = Unlisted(len(rest), p[rest].sum(), (p[rest] * (1 - p[rest])).sum())
    rates = []
    for _ in range(300):
        drawn = rng.choice(rest, sampled, replace=False)
        rates.append(error_rate(found, whole, truth[drawn]))
    values = np.array([item.rate for item in rates])
    assert abs(values.mean() - truth.mean()) < 3 * values.std() / 300**0.5
    inside = np.mean([item.low <= truth.mean() <= item.high for item in rates])
    assert 0.85 <= inside <= 0.97
    assert rates[0].model_share == 0 and rates[0].num_sampled == sampled
    assert rates[0].num_known == truth[listed].sum()


def test_a_sample_without_errors_does_not_prove_that_there_are_none():
    found = recalibrate(np.array([0.9]), np.zeros(1, int), np.arange(1), np.ones(1, bool))
    rate = error_rate(found, Unlisted(9999, 50.0, 49.0), np.zeros(60, bool))
    assert rate.low >= 1e-4 and rate.high > 0.01


def test_what_rests_on_the_model_is_told():
    p = np.full(100, 0.5)
    half = recalibrate(p, np.zeros(100, int), np.arange(50), np.arange(50) % 2 == 0)
    rate = error_rate(half, Unlisted(1000, 10.0, 9.0), np.zeros(0, bool))
    assert rate.model_share == pytest.approx((25 + 10) / 60, abs=0.01)
    assert rate.rate == pytest.approx(60 / 1100, rel=0.02)
    assert rate.low < rate.rate < rate.high


def test_wilson_is_the_score_interval():
    low, high = wilson(9, 10)
    for end in (low, high):
        assert abs(0.9 - end) == pytest.approx(1.6448536 * (end * (1 - end) / 10) ** 0.5)
    assert wilson(0, 0) == (0, 1)
