"""Canaries must not score themselves: the first two tests fail when an example helps to make its own directions."""

from dataclasses import replace

import numpy as np
import pytest

from sgoif.errors import SgoifError
from sgoif.evidence import (
    SIGNALS,
    Holdout,
    Snapshot,
    estimate_transition,
)
from sgoif.evidence.canaries import make_canaries
from tests.evidence.worlds import random_holdout


def share_below(own, flipped):
    """The chance that an own label looks less harmful than a flip: what a canary promises. One half is no promise."""
    return np.mean(own[:, None] < flipped[None, :])


def noise_holdout(m=120, num_classes=3, num_inputs=400):
    """Labels that have nothing to do with the features: no signal can tell own labels from flips."""
    rng = np.random.default_rng(0)
    snapshot = Snapshot(rng.normal(size=(m, num_inputs)), np.zeros((m, num_classes)))
    return Holdout(rng.integers(0, num_classes, m), rng.integers(0, 2, m), num_classes, [snapshot])


def test_canaries_promise_nothing_where_there_is_nothing():
    """Where an example is scored by directions that it helped to make, own labels are below flips in 99 of 100."""
    canaries = make_canaries(noise_holdout(), transition=np.full((3, 3), 1 / 3))
    for name in ("own", "worst", "harm"):
        value = canaries.signals[:, SIGNALS.index(name)]
        assert abs(share_below(value[~canaries.is_flip], value[canaries.is_flip]) - 0.5) < 0.1, name


@pytest.mark.parametrize("seed", range(3))
def test_what_an_example_scores_does_not_depend_on_its_own_holdout_label(seed):
    holdout = random_holdout(seed)
    i = 11
    labels = holdout.labels.copy()
    labels[i] = (labels[i] + 1) % 4
    found = [make_canaries(replace(holdout, labels=which)) for which in (holdout.labels, labels)]
    here = found[0].holdout_row == i
    np.testing.assert_array_equal(found[0].assigned_label, found[1].assigned_label)
    np.testing.assert_array_equal(found[0].signals[here], found[1].signals[here])
    # Nor do its fold-mates' scores; the other fold's do.
    mates = holdout.fold[found[0].holdout_row] == holdout.fold[i]
    np.testing.assert_array_equal(found[0].signals[mates], found[1].signals[mates])
    assert not np.array_equal(found[0].signals[~mates], found[1].signals[~mates])


def test_columns_and_weights():
    holdout = random_holdout(1)
    belief = np.linspace(0, 1, 40)
    canaries = make_canaries(holdout, belief)
    transition = estimate_transition(holdout.mean_probabilities(), holdout.labels, belief)
    assert len(canaries) == 160
    for row in (0, 13, 39):
        for assigned in range(4):
            at = (canaries.holdout_row == row) & (canaries.assigned_label == assigned)
            label = holdout.labels[row]
            expected = belief[row] * (1 if assigned == label else transition[label, assigned])
            assert canaries.weight[at] == pytest.approx([expected])
            assert canaries.is_flip[at] == [assigned != label]
            assert canaries.fold[at] == [holdout.fold[row]]
    other = canaries.reweight(np.eye(4))
    assert (other.weight[other.is_flip] == 0).all() and (
        other.weight[~other.is_flip] == canaries.weight[~canaries.is_flip]
    ).all()
    assert (canaries.take_as_given().weight[~canaries.is_flip] == 1).all()


def test_mistakes_are_named():
    holdout = random_holdout()
    with pytest.raises(SgoifError, match="in \\[0, 1\\]"):
        make_canaries(holdout, np.full(40, 2.0))
    with pytest.raises(SgoifError, match="transition must be"):
        make_canaries(holdout).reweight(np.eye(3))
