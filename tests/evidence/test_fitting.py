"""The small estimators: logistic regression, shifted prior."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgoif.errors import SgoifError
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


def test_logistic_forgets_its_start():
    problem = random_regression(1)
    found, restarted = fit_logistic(*problem), fit_logistic(*problem, start=fit_logistic(*random_regression(2)))
    np.testing.assert_allclose(restarted.slopes, found.slopes, atol=1e-7)
    np.testing.assert_allclose(restarted.class_intercepts, found.class_intercepts, atol=1e-7)


def test_logistic_survives_separation_and_huge_inputs():
    inputs = np.r_[np.full((50, 1), -1e3), np.full((50, 1), 1e3)]
    targets = np.repeat([0.0, 1.0], 50)
    found = fit_logistic(inputs, targets, np.ones(100), np.zeros(100, dtype=int), 1)
    assert np.isfinite(found.slopes).all() and found.slopes[0] > 0
    assert (sigmoid(found.logits(inputs, np.zeros(100, dtype=int))).round() == targets).all()


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [(0.0, [0, 0], "both outcomes"), (0.0, [1, 1], "both outcomes"), (np.nan, [0, 1], "not finite")],
)
def test_logistic_refuses_what_it_cannot_fit(inputs, targets, message):
    with pytest.raises(SgoifError, match=message):
        fit_logistic(np.full((2, 1), inputs), np.array(targets, float), np.ones(2), np.zeros(2, dtype=int), 1)


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
