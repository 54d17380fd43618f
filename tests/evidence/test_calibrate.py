from dataclasses import replace

import numpy as np
import pytest

from sgoif.errors import SgoifError
from sgoif.evidence import (
    SIGNALS,
    CanaryCalibration,
    self_clean,
    should_clean,
)
from sgoif.evidence.canaries import make_canaries
from sgoif.evidence.clean import SelfCleaning
from tests.evidence.worlds import make_world


@pytest.mark.parametrize("seed", range(3))
def test_a_holdout_as_given_cleans_itself(seed):
    world = make_world(seed, trusted=False)
    wrong = world.holdout.labels != world.holdout_true
    cleaning = self_clean(world.holdout)
    assert should_clean(cleaning).clean
    left = cleaning.weights @ wrong / cleaning.weights.sum()
    assert left < 0.6 * wrong.mean()


def test_cleaning_leaves_clean_labels_nearly_alone_and_thin_classes_entirely():
    world = make_world(2, rate=0.0, spread=0.5)
    cleaning = self_clean(world.holdout)
    assert cleaning.estimated_noise < 0.05
    few = np.r_[np.flatnonzero(world.holdout.labels > 0), np.flatnonzero(world.holdout.labels == 0)[:4]]
    (full,) = world.holdout.snapshots
    snapshot = replace(full, features=full.features[few], logits=full.logits[few])
    labels, fold = world.holdout.labels[few], world.holdout.fold[few].copy()
    fold[-4:] = [0, 1, 0, 1]
    cleaning = self_clean(replace(world.holdout, labels=labels, fold=fold, snapshots=[snapshot]))
    assert (cleaning.weights[labels == 0] == 1).all()


def cleaning(kept):
    return SelfCleaning(np.array([kept[-1]]), kept)


@pytest.mark.parametrize(
    ("case", "clean", "reason"),
    [
        (cleaning((0.7, 0.68)), True, "doubts 32%"),
        (cleaning((0.3, 0.2)), False, "too much"),
        (cleaning((0.8, 0.5)), False, "did not settle"),
        (cleaning((0.99, 0.99)), False, "only 1.0%"),
    ],
)
def test_choice_between_cleaned_and_plain(case, clean, reason):
    choice = should_clean(case)
    assert choice.clean == clean and reason in choice.reason


def test_probabilities_do_not_depend_on_the_order_and_average_to_the_prior():
    world = make_world(0)
    canaries = make_canaries(world.holdout)
    order = np.random.default_rng(0).permutation(len(canaries))
    fits = [
        CanaryCalibration.fit(
            canaries.signals[rows],
            canaries.is_flip[rows],
            canaries.weight[rows],
            canaries.assigned_label[rows],
            num_classes=4,
        )
        for rows in (np.arange(len(canaries)), order)
    ]
    p = [fit.predict(canaries.signals, canaries.assigned_label) for fit in fits]
    np.testing.assert_allclose(p[0], p[1], atol=1e-8)
    share = canaries.weight[canaries.is_flip].sum() / canaries.weight.sum()
    assert np.average(p[0], weights=canaries.weight) == pytest.approx(share)  # the intercept's score equation


def test_missing_signals_count_as_average():
    world = make_world(0)
    canaries = make_canaries(world.holdout)
    holes = canaries.signals.copy()
    holes[::7, 3] = np.nan
    fit = CanaryCalibration.fit(holes, canaries.is_flip, canaries.weight, canaries.assigned_label, num_classes=4)
    missing = np.full((1, len(SIGNALS)), np.nan)
    filled = np.sign(fit.centre) * np.expm1(np.abs(fit.centre))
    assert fit.predict(missing, np.array([1])) == pytest.approx(fit.predict(filled[None], np.array([1])))
    assert np.isfinite(fit.predict(holes, canaries.assigned_label)).all()


def test_cleaning_takes_at_least_one_round():
    with pytest.raises(SgoifError, match="rounds"):
        self_clean(make_world(0, n=100, m=100).holdout, rounds=0)
