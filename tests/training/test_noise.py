"""A model of the noise read off a run: errors are counted where the network is sure, and judge the hold-out too."""

import numpy as np
import pytest

from benchmarks.metrics import average_precision
from sgoif.evidence import Canaries, KeptPredictions, LargestPredictions, LikelyOthers, measure_memorisation, read_noise
from sgoif.finish import _suggestions
from sgoif.training.calibration import READ_SIGNALS, Examples, judge_labels
from sgoif.training.canaries import CALIBRATED_SIGNALS

CLASSES = 4
ALL = np.ones(CLASSES, bool)
TRUE = np.array([[0.6, 0.4, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1.0]])  # two fifths of class 0 are called 1


def noisy_predictions(count, seed, transition=TRUE):
    """True and given classes, and what a network that learnt the given ones says: it is as often right as it thinks."""
    rng = np.random.default_rng(seed)
    size = len(transition)
    true = rng.integers(0, size, count)
    given = (np.cumsum(transition[true], 1) > rng.random(count)[:, None]).argmax(1)
    sure = 1 - 0.6 * rng.random(count)[:, None] ** 2
    looks_like = np.where(rng.random(count) < sure[:, 0], true, rng.integers(0, size, count))
    clean = sure * np.eye(size)[looks_like] + (1 - sure) / size
    return true, given, (clean @ transition).astype(np.float32)


def kept(predicted, given):
    own = predicted[np.arange(len(given)), given].astype(np.float64)
    others = LargestPredictions.of(predicted).others(np.arange(len(given)), given)
    return KeptPredictions.of(own, given, others, predicted.shape[1]), np.log(own / others.probabilities[:, 0])


@pytest.fixture(scope="module")
def world():
    true, given, seen = noisy_predictions(4_000, seed=0)
    held_true, held_given, held = noisy_predictions(400, seed=1)
    row, assigned = np.repeat(np.arange(400), CLASSES), np.tile(np.arange(CLASSES), 400)
    tried = held[row].astype(np.float64)
    own = tried[np.arange(len(row)), assigned]
    held = LargestPredictions.of(held)
    others = held.others(row, assigned).probabilities[:, 0]
    signals = np.zeros((len(row), len(CALIBRATED_SIGNALS)))
    signals[:, CALIBRATED_SIGNALS.index("p_given")] = own
    signals[:, CALIBRATED_SIGNALS.index("margin")] = np.log(own / others)
    ones = np.ones(len(row))
    canaries = Canaries(row, row % 2, held_given[row], assigned, ones, ones, signals, np.full(len(row), -1), CLASSES)
    return true, given, seen, held_true, held_given, held, canaries


def test_errors_in_pairs_are_counted_and_found(world):
    true, given, seen, *_ = world
    predictions, margin = kept(seen, given)
    noise = read_noise(predictions, ALL)
    assert noise.transition[0, 1] == pytest.approx(0.4, abs=0.1)
    assert (np.diag(noise.transition)[1:] > 0.95).all()
    wrong = given != true
    found = average_precision(noise.log_odds(predictions, margin), wrong)
    assert found > average_precision(-margin, wrong) + 0.2
    assert (noise.suggest(predictions, margin, ALL).labels[wrong, 0] == true[wrong]).mean() > 0.85
    assert not (noise.suggest(predictions, margin, np.arange(CLASSES) != 0).labels == 0).any()
    shares = noise.suggest(predictions, margin, ALL).probabilities
    np.testing.assert_allclose(shares.sum(1), 1, atol=1e-6)  # four classes: the three others are all there is
    assert (np.diff(shares, axis=1) <= 0).all()
    assert read_noise(predictions, np.arange(CLASSES) != 1).transition[0, 0] == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("classes", [10, 300])
def test_spread_errors_are_ranked_by_the_margin(classes):
    spread = np.full((classes, classes), 0.02 / (classes - 1))
    np.fill_diagonal(spread, 0.98)
    true, given, seen = noisy_predictions(6_000, seed=2, transition=spread)
    predictions, margin = kept(seen, given)
    noise = read_noise(predictions, np.ones(classes, bool))
    wrong = given != true
    floor = average_precision(-margin, wrong)
    assert average_precision(noise.log_odds(predictions, margin), wrong) > floor - 0.01
    if classes == 10:  # of 300, a class has 20 examples, and all of them count as sure
        assert 1 - np.diag(noise.transition).mean() == pytest.approx(0.02, abs=0.015)


def test_labels_that_were_learnt_by_heart_are_read_as_if_they_were_not(world):
    _, given, seen, *_ = world
    predictions, margin = kept(seen, given)
    raised = measure_memorisation(margin + 2, margin)
    assert raised == pytest.approx(1)  # half of it
    assert measure_memorisation(margin, margin + 2) == 0 == measure_memorisation(margin, np.array([]))
    noise = read_noise(predictions, ALL, raised)
    seen_odds, new_odds = (noise.log_odds(predictions, margin, is_seen=is_seen) for is_seen in (True, False))
    assert (seen_odds > new_odds).mean() > 0.9


def test_wrong_holdout_labels_are_believed_less(world):
    _, given, seen, held_true, held_given, held, canaries = world
    noise = read_noise(kept(seen, given)[0], ALL)
    found = judge_labels(canaries, held, noise, np.ones(len(canaries), bool))
    belief = found.calibration.canaries.belief.reshape(400, CLASSES)
    assert (belief == belief[:, :1]).all()  # one belief per hold-out example, whatever label it is tried under
    wrong = held_true != held_given
    assert belief[wrong, 0].mean() < belief[~wrong, 0].mean() - 0.2
    assert found.doubt == pytest.approx(wrong.mean(), abs=0.05)
    trusted = judge_labels(canaries, held, noise, np.zeros(len(canaries), bool))
    assert trusted.doubt is None and (trusted.calibration.canaries.belief == 1).all()


def test_the_number_of_errors_is_right_within_a_factor_of_two(world):
    true, given, seen, _, _, held, canaries = world
    predictions, margin = kept(seen, given)
    noise = read_noise(predictions, ALL)
    calibration = judge_labels(canaries, held, noise, np.ones(len(canaries), bool)).calibration
    asked = Examples(predictions, margin, np.zeros((len(given), len(READ_SIGNALS))))
    p = calibration.predict(asked.signals(noise), given)
    wrong = given != true
    assert wrong.sum() / 2 < p.sum() < 2 * wrong.sum()
    assert average_precision(p, wrong) > average_precision(noise.log_odds(predictions, margin), wrong) - 0.01


def test_suggestions_of_examples_that_were_not_judged_stay():
    columns = {f"suggested_label{tail}": np.full(3, -1) for tail in ("", "_2", "_3")}
    examples = {**columns, "suggested_share": np.zeros(3), "given_label": np.array([0, 0, -1])}
    labels = np.array([[1, 2, -1], [1, 2, -1], [1, 2, -1]])
    likely = LikelyOthers(labels, np.array([[0.5, 0.25, 0.0]] * 3))
    found = _suggestions(likely, examples, np.array([0.8, np.nan, 0.8]))
    assert found["suggested_label"].tolist() == [1, -1, -1]
    np.testing.assert_allclose(found["p_suggested"], [0.4, np.nan, np.nan])
    np.testing.assert_allclose(found["p_suggested_2"], [0.2, np.nan, np.nan])
