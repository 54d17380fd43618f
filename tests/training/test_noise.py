"""A model of the noise read off a run: it sharpens the transition, and knows which hold-out labels are wrong."""

import numpy as np
import pytest

from benchmarks.metrics import average_precision
from sgoif.evidence import Canaries, LabelCalibration, NoiseModel
from sgoif.finish import _suggestions
from sgoif.training.noise import NoiseEvidence, Predictions, noise_of_run

CLASSES = 4
TRUE = np.array([[0.6, 0.4, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1.0]])  # two fifths of class 0 are called 1


def noisy_predictions(count, seed):
    """True and given classes, and what a network that learnt the given ones says: right for four of five."""
    rng = np.random.default_rng(seed)
    true = rng.integers(0, CLASSES, count)
    given = np.array([rng.choice(CLASSES, p=TRUE[label]) for label in true])
    looks_like = np.where(rng.random(count) < 0.8, true, rng.integers(0, CLASSES, count))
    clean = 0.8 * np.eye(CLASSES)[looks_like] + 0.2 / CLASSES
    return true, given, (clean @ TRUE).astype(np.float32)


@pytest.fixture(scope="module")
def world():
    true, given, seen = noisy_predictions(4_000, seed=0)
    held_true, held_given, held = noisy_predictions(400, seed=1)
    row = np.repeat(np.arange(400), CLASSES)
    assigned = np.tile(np.arange(CLASSES), 400)
    ones = np.ones(len(row))
    canaries = Canaries(
        row, row % 2, held_given[row], assigned, ones, ones, np.zeros((len(row), 1)), np.full(len(row), -1), CLASSES
    )
    blurred = 0.85 * TRUE + 0.15 / CLASSES  # what a first calibration may have found
    calibration = LabelCalibration(canaries, blurred, None, None)
    return true, given, held_true, held_given, calibration, Predictions(seen, held[row]), canaries


def test_it_finds_errors_and_suggests_what_they_are(world):
    true, given, _, _, calibration, predictions, canaries = world
    noise, _ = noise_of_run(calibration, predictions, given, canaries)
    wrong = given != true
    by_network = -predictions.seen[np.arange(len(given)), given]
    found = average_precision(noise.log_odds(given), wrong)
    assert found > average_precision(by_network, wrong) + 0.2
    suggested, _ = noise.suggested(given, top=1)
    assert (suggested[wrong, 0] == true[wrong]).mean() > 0.85


def test_classes_without_noise_leak_less_than_the_calibration_thought(world):
    _, given, _, _, calibration, predictions, canaries = world
    noise, _ = noise_of_run(calibration, predictions, given, canaries)
    kept, thought = np.diag(noise.model.transition), np.diag(calibration.transition)
    assert (kept[2:] > thought[2:]).all()
    assert noise.model.transition[0, 1] == pytest.approx(0.4, abs=0.05)


def test_wrong_holdout_labels_are_believed_less(world):
    _, given, held_true, held_given, calibration, predictions, canaries = world
    _, belief = noise_of_run(calibration, predictions, given, canaries)
    by_row = belief.reshape(400, CLASSES)
    assert (by_row == by_row[:, :1]).all()  # one belief per hold-out example, whatever label it is tried under
    wrong = held_true != held_given
    assert by_row[wrong, 0].mean() < by_row[~wrong, 0].mean() - 0.2


def test_a_transition_that_cannot_be_is_not_used(world):
    _, given, _, _, calibration, predictions, canaries = world
    lost = np.roll(np.eye(CLASSES), 1, axis=1)
    upside_down = LabelCalibration(calibration.canaries, lost, None, None)
    assert noise_of_run(upside_down, predictions, given, canaries) is None


def test_examples_that_were_not_judged_have_even_predictions():
    model = NoiseModel(np.eye(2))
    evidence = NoiseEvidence(model, np.array([[0.9, 0.1]]), np.zeros((0, 2)), is_by_canary=True)
    spread = evidence.at_rows(np.array([False, True, False]))
    assert spread.probabilities.tolist() == [[0.5, 0.5], [0.9, 0.1], [0.5, 0.5]]


def test_there_is_a_limit():
    assert Predictions.is_affordable(1_000_000, 100)
    assert not Predictions.is_affordable(1_000, 1_000)
    assert not Predictions.is_affordable(100_000_000, 100)


def test_suggestions_of_examples_that_were_not_judged_stay():
    noise = NoiseEvidence(NoiseModel(0.7 * np.eye(3) + 0.1), np.full((3, 3), 1 / 3), np.zeros((0, 3)))
    columns = {f"suggested_label{tail}": np.full(3, -1) for tail in ("", "_2", "_3")}
    examples = {**columns, "suggested_share": np.zeros(3), "given_label": np.array([0, 0, -1])}
    found = _suggestions(noise, examples, np.array([True, False, True]))
    assert found["suggested_label"][0] in (1, 2)
    assert found["suggested_label"][1:].tolist() == [-1, -1]
