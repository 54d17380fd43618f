"""The noise model: Bayes against sums written out, its inverse, its update, and when it is not to be believed."""

import numpy as np
import pytest

from sgoif.evidence import NoiseModel, sure_transition

PAIR = np.array([[0.6, 0.4, 0.0], [0.0, 1.0, 0.0], [0.1, 0.0, 0.9]])


def probabilities(count=50, seed=0):
    return np.random.default_rng(seed).dirichlet([0.3] * 3, count)


def test_the_posterior_is_bayes_rule():
    p, given = probabilities(), np.arange(50) % 3
    found = NoiseModel(PAIR).posterior(p, given)
    for i in range(50):
        joint = [p[i, c] * PAIR[c, given[i]] for c in range(3)]
        assert found[i] == pytest.approx(np.array(joint) / sum(joint))


def test_log_odds_are_those_of_the_posterior_and_stay_finite():
    p, given = probabilities(), np.arange(50) % 3
    right = NoiseModel(PAIR).posterior(p, given)[np.arange(50), given].clip(1e-6, 1 - 1e-6)
    assert NoiseModel(PAIR).log_odds(p, given) == pytest.approx(np.log((1 - right) / right))
    sure = NoiseModel(np.eye(3)).log_odds(np.eye(3)[[0, 1]], np.array([0, 0]))
    assert np.isfinite(sure).all() and sure[0] < -10 < 10 < sure[1]


def test_predictions_of_given_classes_are_turned_into_those_of_true_ones():
    p = probabilities() * 0.98 + 0.02 / 3
    assert NoiseModel(PAIR).undo(p @ PAIR) == pytest.approx(p, abs=5e-3)
    wild = NoiseModel(PAIR).undo(np.eye(3)[[0]])  # more class 0 than the noise allows: no negative probabilities
    assert (wild > 0).all() and wild.sum() == pytest.approx(1)


def test_with_the_true_posterior_the_count_finds_the_transition():
    rng = np.random.default_rng(1)
    true = rng.integers(0, 3, 40_000)
    given = (rng.random(len(true))[:, None] > PAIR[true].cumsum(1)).sum(1)
    found = NoiseModel(np.full((3, 3), 1 / 3)).updated(np.eye(3)[true], given)
    assert found.transition == pytest.approx(PAIR, abs=0.01)


def test_a_class_without_examples_keeps_its_row():
    found = NoiseModel(PAIR).updated(np.eye(3)[[0, 0, 1]], np.array([0, 1, 1]))
    assert found.transition[2] == pytest.approx(PAIR[2])
    assert found.transition[0] == pytest.approx([0.5, 0.5, 0.0])


def test_the_start_is_read_off_where_a_classifier_is_surest():
    rng = np.random.default_rng(2)
    true = rng.dirichlet([0.05] * 3, 3000)  # most are clear, some are not
    assert NoiseModel.start(true @ PAIR).transition == pytest.approx(PAIR, abs=0.03)
    over_all = np.stack([(true @ PAIR)[true.argmax(1) == c].mean(0) for c in range(3)])
    assert np.abs(over_all - PAIR).sum() > 2 * np.abs(sure_transition(true @ PAIR) - PAIR).sum()
    assert sure_transition(np.full((4, 3), np.nan)) == pytest.approx(np.eye(3))


def test_more_wrong_labels_than_right_ones_are_not_believed():
    assert NoiseModel(PAIR).plausible().transition == pytest.approx(PAIR)
    assert NoiseModel(np.array([[0.4, 0.6], [0.0, 1.0]])).plausible() is None
    one_of_ten = np.eye(10)
    one_of_ten[3, [3, 4]] = 0.4, 0.6
    assert NoiseModel(one_of_ten).plausible().transition == pytest.approx(np.eye(10))


def test_confusion_shrinks_beside_a_strong_leak_and_even_leaks_stay():
    even = 0.6 * np.eye(5) + 0.08
    assert NoiseModel(even).concentrated().transition == pytest.approx(even)
    pair = np.eye(5)
    pair[0] = [0.55, 0.36, 0.03, 0.03, 0.03]
    found = NoiseModel(pair).concentrated().transition
    assert found[0] == pytest.approx([0.631, 0.36, 0.003, 0.003, 0.003])
    assert found.sum(1) == pytest.approx(np.ones(5))


def test_a_leak_that_is_too_strong_is_tempered_not_forgotten():
    strong = np.eye(10)
    strong[9, [9, 1, 2]] = 0.4, 0.5, 0.1
    found = NoiseModel(strong).tempered()
    assert found is not None
    assert found.transition[9, 9] == pytest.approx(found.transition[9, 1])
    assert found.transition[9, 1] / found.transition[9, 2] == pytest.approx(5)
    np.testing.assert_allclose(found.transition.sum(axis=1), 1)
    np.testing.assert_array_equal(found.transition[:9], np.eye(10)[:9])


def test_what_is_plausible_is_not_tempered():
    mild = 0.8 * np.eye(4) + 0.05
    found = NoiseModel(mild).tempered()
    assert found is not None
    np.testing.assert_allclose(found.transition, mild)
    assert NoiseModel(np.roll(np.eye(4), 1, axis=1)).tempered() is None
