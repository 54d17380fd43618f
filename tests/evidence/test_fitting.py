"""The small estimators: logistic regression, shifted prior, transition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgoif.errors import SgoifError
from sgoif.evidence import estimate_transition
from sgoif.evidence.calibrate import shift_prior
from sgoif.evidence.logistic import fit_logistic, sigmoid


def random_regression(seed, m=80, num_inputs=3, num_classes=4):
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(m, num_inputs))
    classes = rng.integers(0, num_classes, m)
    logits = inputs @ rng.normal(size=num_inputs) + rng.normal(size=num_classes)[classes]
    targets = (rng.random(m) < sigmoid(logits)).astype(float)
    targets[:2] = 0, 1
    return inputs, targets, 0.1 + rng.random(m), classes, num_classes


@given(seed=st.integers(0, 2**31), ridge=st.floats(1e-3, 10), class_ridge=st.floats(0.1, 10))
def test_logistic_solves_its_score_equations(seed, ridge, class_ridge):
    inputs, targets, weights, classes, num_classes = random_regression(seed)
    found = fit_logistic(inputs, targets, weights, classes, num_classes, ridge, class_ridge)
    error = weights * (sigmoid(found.logits(inputs, classes)) - targets)
    by_class = np.bincount(classes, weights=error, minlength=num_classes)
    assert abs(error.sum()) < 1e-8
    np.testing.assert_allclose(inputs.T @ error + ridge * found.slopes, 0, atol=1e-8)
    np.testing.assert_allclose(by_class + class_ridge * found.class_intercepts, 0, atol=1e-8)


def test_logistic_of_two_groups_has_a_closed_form():
    inputs, classes = np.zeros((10, 1)), np.zeros(10, dtype=int)
    targets = (np.arange(10) < 3).astype(float)
    found = fit_logistic(inputs, targets, np.ones(10), classes, 1)
    assert found.intercept + found.class_intercepts[0] == pytest.approx(np.log(3 / 7))


def test_logistic_counts_weight_as_repetition_and_forgets_its_start():
    inputs, targets, _, classes, num_classes = random_regression(1)
    times = np.arange(len(inputs)) % 3 + 1
    weighted = fit_logistic(inputs, targets, times.astype(float), classes, num_classes)
    rows = np.repeat(np.arange(len(inputs)), times)
    repeated = fit_logistic(inputs[rows], targets[rows], np.ones(len(rows)), classes[rows], num_classes)
    elsewhere = fit_logistic(*random_regression(2))
    restarted = fit_logistic(inputs, targets, times.astype(float), classes, num_classes, start=elsewhere)
    for other in (repeated, restarted):
        np.testing.assert_allclose(other.slopes, weighted.slopes, atol=1e-7)
        np.testing.assert_allclose(other.class_intercepts, weighted.class_intercepts, atol=1e-7)


def test_logistic_survives_separation_and_huge_inputs():
    inputs = np.r_[np.full((50, 1), -1e3), np.full((50, 1), 1e3)]
    targets = np.repeat([0.0, 1.0], 50)
    found = fit_logistic(inputs, targets, np.ones(100), np.zeros(100, dtype=int), 1)
    assert np.isfinite(found.slopes).all() and found.slopes[0] > 0
    assert (sigmoid(found.logits(inputs, np.zeros(100, dtype=int))).round() == targets).all()


def test_logistic_shrinks_the_intercepts_of_rare_classes():
    targets = np.r_[np.ones(50), np.zeros(50), 1.0]
    classes = np.r_[np.zeros(100, dtype=int), 1]
    found = fit_logistic(np.zeros((101, 1)), targets, np.ones(101), classes, 3)
    assert 0 < found.class_intercepts[1] < 0.2  # one example moves a class little, though its odds are infinite
    assert found.class_intercepts[2] == 0  # a class never seen has the common intercept


@pytest.mark.parametrize("targets", [np.zeros(4), np.ones(4)])
def test_logistic_needs_both_outcomes(targets):
    with pytest.raises(SgoifError, match="both outcomes"):
        fit_logistic(np.zeros((4, 1)), targets, np.ones(4), np.zeros(4, dtype=int), 1)


def test_logistic_refuses_what_is_not_finite():
    with pytest.raises(SgoifError, match="not finite"):
        fit_logistic(np.full((4, 1), np.nan), np.r_[0.0, 1, 0, 1], np.ones(4), np.zeros(4, dtype=int), 1)


def shifted_scores(seed, share, n=20_000):
    """Unit normals at ±1, for which ``2x`` are the log odds at equal shares."""
    rng = np.random.default_rng(seed)
    positive = rng.random(n) < share
    return 2 * (rng.normal(size=n) + np.where(positive, 1, -1))


@given(seed=st.integers(0, 2**31), share=st.floats(0.02, 0.9), prior=st.floats(0.1, 0.9))
def test_shifted_prior_is_recovered_whatever_the_prior_of_the_calibration(seed, share, prior):
    odds = shifted_scores(seed, share) + np.log(prior / (1 - prior))
    assert shift_prior(odds, prior) == pytest.approx(share, abs=0.02)  # 4 standard errors of EM at 20,000


def test_shifted_prior_without_positives_goes_to_zero_and_checks_its_input():
    assert shift_prior(shifted_scores(0, 0.0), 0.5) < 0.01
    with pytest.raises(SgoifError, match="inside"):
        shift_prior(np.zeros(3), 0.0)
    with pytest.raises(SgoifError, match="finite"):
        shift_prior(np.full(3, np.nan), 0.5)


@given(seed=st.integers(0, 2**31))
def test_transition_is_the_weighted_mean_prediction(seed):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(3), 30)
    labels, weights = rng.integers(0, 2, 30), rng.random(30)
    labels[:2] = 0, 1
    found = estimate_transition(p, labels, weights)
    for label in (0, 1):
        mine = labels == label
        np.testing.assert_allclose(found[label], np.average(p[mine], axis=0, weights=weights[mine]))
    np.testing.assert_array_equal(found[2], [0, 0, 1])  # no examples: nothing known
    np.testing.assert_allclose(found.sum(axis=1), 1)
