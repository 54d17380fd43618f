from dataclasses import replace

import numpy as np
import pytest

from sgoif.errors import SgoifError
from sgoif.evidence import (
    SIGNALS,
    CanaryCalibration,
    SelfCleaning,
    calibrate,
    cross_fitted_ap,
    draw_calibrations,
    expected_precision,
    make_canaries,
    rescore,
    self_clean,
    should_clean,
)
from tests.evidence.worlds import make_world


def average_precision(scores, is_error):
    hits = is_error[np.argsort(-scores)]
    return np.mean((np.cumsum(hits) / np.arange(1, len(hits) + 1))[hits])


def run(world, weights=None, **settings):
    signals, anchors = rescore(world.holdout, world.seen, world.given, world.holdout.snapshots[0], weights)
    found = calibrate(make_canaries(world.holdout, weights), signals, world.given, anchors, **settings)
    return found, signals


@pytest.mark.parametrize("seed", range(3))
def test_trusted_holdout_finds_the_errors_and_knows_how_many(seed):
    world = make_world(seed)
    found, signals = run(world)
    p = found.predict(signals, world.given)
    loss = signals[:, SIGNALS.index("loss")]
    assert average_precision(p, world.is_error) > average_precision(loss, world.is_error) + 0.1
    plain, _ = run(world, adapt=False)
    before = plain.predict(signals, world.given)
    assert average_precision(p, world.is_error) > average_precision(before, world.is_error)
    # The canaries' own share of flips is the head's confusion, 0.21-0.27 here, and not the noise rate, 0.17-0.18.
    assert abs(p.mean() - world.is_error.mean()) < 0.8 * abs(before.mean() - world.is_error.mean())
    assert found.as_given is None
    for part in expected_precision(
        found, signals, world.given, draws=draw_calibrations(found, signals, world.given, num_draws=20)
    ):
        true = world.is_error[np.argsort(-p, kind="stable")[: part.count]].mean()
        assert abs(part.value - true) < 0.1
        assert 0 <= part.low <= part.value <= part.high <= 1


def test_the_transition_is_found_among_the_training_examples():
    found, _ = run(make_world(1))
    np.testing.assert_allclose(found.transition[[0, 2], [1, 3]], 0.35, atol=0.05)
    assert found.transition[[1, 3], [0, 2]].max() < 0.1


@pytest.mark.parametrize("seed", range(3))
def test_a_holdout_as_given_cleans_itself_and_promises_no_more_than_it_keeps(seed):
    world = make_world(seed, trusted=False)
    wrong = world.holdout.labels != world.holdout_true
    cleaning = self_clean(world.holdout)
    assert should_clean(cleaning).clean
    left = cleaning.weights @ wrong / cleaning.weights.sum()
    assert left < 0.6 * wrong.mean()
    plain, plain_signals = run(world, rounds=0, adapt=False)
    found, signals = run(world, cleaning.weights)
    p = found.predict(signals, world.given)
    before = average_precision(plain.predict(plain_signals, world.given), world.is_error)
    assert average_precision(p, world.is_error) > before
    for part in expected_precision(
        found, signals, world.given, draws=draw_calibrations(found, signals, world.given, num_draws=20)
    ):
        true = world.is_error[np.argsort(-p, kind="stable")[: part.count]].mean()
        assert part.value < true + 0.1
        assert part.low < true


def test_mixtures_clean_too():
    world = make_world(1, trusted=False)
    wrong = world.holdout.labels != world.holdout_true
    cleaning = self_clean(world.holdout, method="mixture")
    assert cleaning.weights @ wrong / cleaning.weights.sum() < 0.7 * wrong.mean()


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
    assert cleaning.undoubted == (0,)
    assert (cleaning.weights[labels == 0] == 1).all()


def cleaning(kept, method="canaries", concentrated=0.3):
    return SelfCleaning(np.array([kept[-1]]), method, kept, np.array([kept[-1]]), (), concentrated)


@pytest.mark.parametrize(
    ("case", "clean", "reason"),
    [
        (cleaning((0.7, 0.68)), True, "doubts 32%"),
        (cleaning((0.3, 0.2)), False, "too much"),
        (cleaning((0.8, 0.5)), False, "did not settle"),
        (cleaning((0.99, 0.99)), False, "only 1.0%"),
        (cleaning((0.7, 0.7), "mixture"), False, "spread"),
        (cleaning((0.7, 0.7), "mixture", 0.8), True, "settled"),
    ],
)
def test_choice_between_cleaned_and_plain(case, clean, reason):
    choice = should_clean(case)
    assert choice.clean == clean and reason in choice.reason


def test_without_adapting_the_canaries_prior_stays():
    world = make_world(0, trusted=False)
    found, _ = run(world, adapt=False)
    assert (found.believed.shift == 0).all()
    np.testing.assert_array_equal(found.canaries.weight, make_canaries(world.holdout).weight)


@pytest.mark.parametrize("seed", range(4))
def test_clean_labels_are_promised_to_be_clean(seed):
    world = make_world(seed, rate=0.0)
    found, signals = run(world)
    p = np.sort(found.predict(signals, world.given))[::-1]
    assert p[: len(p) // 100].mean() < 0.1  # 0.78-0.88 by the canaries' own share
    assert p.mean() < 0.005


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
    assert np.average(p[0], weights=canaries.weight) == pytest.approx(canaries.prior)  # the intercept's score equation


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


def test_canary_ap_is_measured_on_the_other_fold():
    canaries = make_canaries(make_world(0, rate=0.2).holdout)
    folds = []

    class Memory:
        """Knows by heart what it was fitted on, and nothing else."""

        def __init__(self, seen):
            folds.append(set(seen.fold[seen.weight > 0].tolist()))
            self.known = {tuple(row) for row in seen.signals[(seen.weight > 0) & seen.is_flip]}

        def log_odds(self, signals, given_label):
            return np.array([float(tuple(row) in self.known) for row in signals])

    remembered = cross_fitted_ap(canaries, Memory)
    assert folds == [{1}, {0}]
    assert remembered < cross_fitted_ap(canaries)
    assert remembered == pytest.approx(canaries.prior, abs=0.1)


def test_mistakes_are_named():
    world = make_world(0, n=100, m=100)
    found, signals = run(world)
    with pytest.raises(SgoifError, match="suggested"):
        calibrate(found.canaries, signals, world.given, np.zeros(3, dtype=int))
    with pytest.raises(SgoifError, match="shares"):
        expected_precision(found, signals, world.given, top=[5])
    with pytest.raises(SgoifError, match="canaries, mixture"):
        self_clean(world.holdout, method="magic")
