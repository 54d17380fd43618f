"""Agreement is that of scikit-learn, and canaries are counted as they should be."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score

from sgoif.review.decisions import Decision
from sgoif.review.results import agreement, canary_scores, cohen_kappa


@given(seed=st.integers(0, 2**31), count=st.integers(2, 40), kinds=st.integers(2, 5))
def test_kappa_is_that_of_sklearn(seed, count, kinds):
    rng = np.random.default_rng(seed)
    one = rng.integers(0, kinds, count)
    other = np.where(rng.random(count) < 0.5, one, rng.integers(0, kinds, count))
    if len({*one.tolist(), *other.tolist()}) > 1:
        assert cohen_kappa(one.tolist(), other.tolist()) == pytest.approx(cohen_kappa_score(one, other), abs=1e-12)


def decided(reviewer, answers):
    return [Decision(str(i), 0, kind, labels, reviewer=reviewer) for i, (kind, labels) in answers.items()]


def test_people_are_compared_on_what_they_share_by_decision_and_class():
    keep, one, two = ("keep", ()), ("relabel", (1,)), ("relabel", (2,))
    ann = {0: keep, 1: one, 2: two, 3: keep, 9: one}
    ben = {0: keep, 1: one, 2: one, 3: keep, 8: one}
    found = agreement(decided("ann", ann) + decided("ben", ben))
    expected = cohen_kappa_score(["k", "1", "2", "k"], ["k", "1", "1", "k"])
    assert (found.kappa, found.num_shared, found.num_pairs) == (pytest.approx(expected), 4, 1)
    cem = {0: keep, 1: one, 2: two}
    three = agreement(decided("ann", ann) + decided("ben", ben) + decided("cem", cem))
    pairs = [expected, 1.0, cohen_kappa_score(["k", "1", "1"], ["k", "1", "2"])]
    assert three.kappa == pytest.approx(np.mean(pairs))
    in_another_order = ({0: ("several", labels), 1: keep} for labels in ((2, 1), (1, 2)))
    assert agreement([item for who in "ab" for item in decided(who, next(in_another_order))]).kappa == 1
    # where nothing is shared, or all say the same, kappa says nothing
    assert math.isnan(agreement(decided("ann", {0: keep})).kappa)
    same = {i: keep for i in range(5)}
    found = agreement(decided("ann", same) + decided("ben", same))
    assert math.isnan(found.kappa) and found.num_shared == 5


def test_a_canary_is_seen_through_by_naming_the_truth():
    truths = {(str(i), 0): 1 for i in range(5)}
    answers = {0: ("relabel", (1,)), 1: ("several", (1, 2)), 2: ("relabel", (2,)), 7: ("relabel", (1,))}
    answers |= {3: ("keep", ()), 4: ("drop", ())}
    score = canary_scores(decided("ann", answers), truths)["ann"]
    assert (score.num_right, score.num_shown) == (2, 5)
    assert 0 < score.low < 0.4 < score.high < 1
