"""A logistic regression on canaries."""

import numpy as np
import pytest

from sgoif.evidence import CanaryCalibration


def make_canaries(seed=0, num=400, num_classes=4):
    """Signals over decades, larger for flips; their labels and weights."""
    rng = np.random.default_rng(seed)
    is_flip, labels = rng.random(num) < 0.3, rng.integers(0, num_classes, num)
    bent = rng.normal(size=(num, 5)) + is_flip[:, None] + 0.2 * labels[:, None]
    return np.sign(bent) * np.expm1(np.abs(bent)), is_flip, 0.2 + rng.random(num), labels


def test_probabilities_do_not_depend_on_the_order_and_average_to_the_prior():
    canaries = signals, is_flip, weight, labels = make_canaries()
    order = np.random.default_rng(0).permutation(len(labels))
    fits = [
        CanaryCalibration.fit(*(part[rows] for part in canaries), num_classes=4)
        for rows in (np.arange(len(labels)), order)
    ]
    p = [fit.predict(signals, labels) for fit in fits]
    np.testing.assert_allclose(p[0], p[1], atol=1e-8)
    share = weight[is_flip].sum() / weight.sum()
    assert np.average(p[0], weights=weight) == pytest.approx(share)  # the intercept's score equation


def test_missing_signals_count_as_average():
    signals, is_flip, weight, labels = make_canaries()
    holes = signals.copy()
    holes[::7, 3] = np.nan
    fit = CanaryCalibration.fit(holes, is_flip, weight, labels, num_classes=4)
    missing = np.full((1, 5), np.nan)
    filled = np.sign(fit.centre) * np.expm1(np.abs(fit.centre))
    assert fit.predict(missing, np.array([1])) == pytest.approx(fit.predict(filled[None], np.array([1])))
    assert np.isfinite(fit.predict(holes, labels)).all()
