"""What is counted of the noise, and predictions seen through it."""

import numpy as np
import pytest

from sgoif.evidence.counts import count_sure, limit_leaks, recover_true, scale_errors, shrink_counts


@pytest.mark.parametrize("classes", [2, 3, 40])
def test_transitions_are_probabilities_with_the_own_class_first(classes):
    rng = np.random.default_rng(classes)
    predicted, given = rng.integers(0, classes, (2, 4000))
    counts = count_sure(predicted, rng.random(4000), given, classes)
    assert counts.sum() <= 0.1 * 4000 + 20 * classes
    for noise in (
        shrink_counts(counts),
        limit_leaks(shrink_counts(counts), 0.5),
        scale_errors(shrink_counts(counts), 3),
    ):
        np.testing.assert_allclose(noise.sum(1), 1.0)
        assert (noise > 0).all() and (noise.argmax(1) == np.arange(classes)).all()


def test_recovered_predictions_give_the_seen_ones_back():
    rng = np.random.default_rng(0)
    true = rng.dirichlet(np.full(5, 0.3), 50)
    noise = limit_leaks(0.8 * np.eye(5) + 0.2 * rng.dirichlet(np.ones(5), 5))
    found = recover_true(true @ noise, noise, steps=2_000)
    np.testing.assert_allclose(found @ noise, true @ noise, atol=1e-4)
