"""The estimate from features: as good as its best head, no pattern without counts, no class that vanishes."""

import numpy as np
import pytest
import torch

from benchmarks import data
from sgoif.judging.fitting import fit_noise
from sgoif.judging.folds import LOWEST, make_folds
from sgoif.judging.heads import PredictedHead
from sgoif.judging.judgement import judge_fitted
from sgoif.judging.linear import LinearHead
from sgoif.scanning.estimate import estimate_features, make_heads
from sgoif.scanning.neighbours import NeighbourHead
from sgoif.scanning.standardise import check_features, standardise
from sgoif.scanning.tabular import TreeHead
from tests.judging.made import average_precision, clusters


def estimate(rows, given, classes):
    return estimate_features(rows, np.arange(len(given)), given, classes)


@pytest.mark.usefixtures("quick_heads")
def test_no_head_sees_the_label_that_it_judges():
    rows, truth, _ = clusters(300, width=20)
    folds, labels = make_folds(np.arange(300), truth), torch.from_numpy(truth)
    changed = labels.clone()
    changed[7] = (changed[7] + 1) % 4
    for make in (LinearHead, NeighbourHead, TreeHead):
        before, after = (make(rows, 4, folds).fit(y)[7] for y in (labels, changed))
        torch.testing.assert_close(before, after)


def test_spread_errors_are_found_counted_and_no_pattern_is_claimed():
    rows, truth, rng = clusters(3000)
    wrong = np.arange(3000) % 33 == 0
    given = np.where(wrong, (truth + rng.integers(1, 4, 3000)) % 4, truth)
    found = estimate(rows, given, 4)
    assert average_precision(found.p, wrong) > 0.95
    assert abs(found.p.sum() - wrong.sum()) < 0.3 * wrong.sum()
    assert found.p_low.sum() <= found.p.sum() <= found.p_high.sum()
    leaks = found.transition[~np.eye(4, dtype=bool)]
    assert leaks.max() < 4 * leaks.mean()
    flagged = found.p > 0.5
    assert wrong[flagged].mean() > 0.9 and (found.suggested[flagged & wrong, 0] == truth[flagged & wrong]).mean() > 0.9


def test_pairs_of_classes_are_found_where_confidence_alone_cannot_tell():
    rows, truth, rng = clusters(2000, spread=1.3, seed=1)
    wrong = (truth == 0) & (rng.random(2000) < 0.4)
    given = np.where(wrong, 1, truth)
    found = estimate(rows, given, 4)
    folds = make_folds(np.arange(2000), given)
    plain = LinearHead(rows, 4, folds).fit(torch.from_numpy(given)).exp().numpy()
    confident = average_precision(1 - plain[np.arange(2000), given], wrong)
    assert average_precision(found.p, wrong) > confident + 0.1
    assert 0.25 < found.transition[0, 1] < 0.5 and found.transition[1, 0] < 0.1


def hard_class(seed=0):
    """Four classes, of which the last looks much like the first three: its surest predictions are often wrong."""
    rng = np.random.default_rng(seed)
    truth = np.arange(4000) % 4
    centre = np.repeat(np.eye(4), 30, axis=1)
    centre[3] = centre[:3].mean(0) + 0.15 * centre[3]
    return torch.from_numpy((rng.normal(size=(4000, 120)) + 0.9 * centre[truth]).astype(np.float32)), truth, rng


def test_classes_that_look_alike_are_no_pattern_of_errors():
    rows, truth, rng = hard_class()
    wrong = rng.random(4000) < 0.01
    given = np.where(wrong, (truth + rng.integers(1, 4, 4000)) % 4, truth)
    found = estimate(rows, given, 4)
    leaks = found.transition[~np.eye(4, dtype=bool)]
    assert leaks.max() < 1.1 * leaks.min()  # counted among the surest, the last class seems to have many errors
    assert 0.5 < found.p.sum() / wrong.sum() < 2


def test_hard_examples_of_a_clean_set_are_not_called_errors():
    rows, truth, _ = hard_class(1)
    found = estimate(rows, truth, 4)
    assert (found.p > 0.5).sum() == 0 and found.p.sum() < 0.005 * 4000


@pytest.mark.usefixtures("quick_heads")
@pytest.mark.parametrize("kind", ["each to one other", "spread"])
def test_errors_in_an_easy_set_are_all_believed(kind):
    """Its labels are as likely by predictions that expect any label now and then: the counts have to stand."""
    rng = np.random.default_rng(1)
    truth = np.arange(900) % 3
    rows = torch.from_numpy((4 * rng.normal(size=(3, 20))[truth] + rng.normal(size=(900, 20))).astype(np.float32))
    wrong = np.arange(900) % 10 == 0
    given = np.where(wrong, (truth + (1 if kind == "each to one other" else rng.integers(1, 3, 900))) % 3, truth)
    found = estimate(rows, given, 3)
    assert ((found.p > 0.5) == wrong).mean() > 0.99 and abs(found.p.sum() - 90) < 15


def test_a_class_does_not_vanish_where_two_are_given_for_each_other():
    rng = np.random.default_rng(0)
    truth = np.repeat([0, 1, 2], [600, 250, 400])
    rows = rng.normal(size=(1250, 120)) + 0.35 * np.repeat(np.eye(3), 40, axis=1)[truth]
    drawn = rng.random(1250)
    given = np.where((truth == 0) & (drawn < 0.45), 1, np.where((truth == 1) & (drawn < 0.43), 0, truth))
    found = estimate(torch.from_numpy(rows.astype(np.float32)), given, 3)
    believed = np.where(found.p > 0.5, found.suggested[:, 0], given)
    assert (np.bincount(believed, minlength=3) > 80).all()  # without limits no example is left of class 1


def test_predictions_that_cost_too_much_to_make_again_are_judged_too():
    rows, truth, _rng = clusters(1500)
    wrong = np.arange(1500) % 20 == 0
    given = np.where(wrong, (truth + 1) % 4, truth)
    log_p = LinearHead(rows, 4, make_folds(np.arange(1500), given)).fit(torch.from_numpy(given))
    found = judge_fitted(fit_noise([PredictedHead(log_p)], given, 4))
    assert average_precision(found.p, wrong) > 0.9


@pytest.mark.usefixtures("quick_heads")
def test_further_examples_are_predicted_as_the_first_fold_predicts_its_own():
    rows, truth, _ = clusters(800, width=40)
    labels, folds = torch.from_numpy(truth), make_folds(np.arange(800), truth)
    noise, test = torch.full((4, 4), 0.05) + 0.8 * torch.eye(4), folds[0].test
    for head in make_heads(rows, 4, folds):
        found = head.fit(labels)
        refitted = head.refit(labels, noise, found.exp().__getitem__, restart=True)
        for is_refitted, expected in ((False, found), (True, refitted)):
            predicted = head.predictor(is_refitted=is_refitted)(rows[test]).clamp_min(LOWEST)
            torch.testing.assert_close(predicted, expected[test], rtol=1e-4, atol=1e-4, msg=head.name)


@pytest.mark.parametrize("kind", ["pairs", "spread"])
def test_what_is_learnt_from_a_sample_judges_the_others_as_well(monkeypatch, kind):
    rows, truth, rng = clusters(3000)
    wrong = (rng.random(3000) < 0.1) if kind == "spread" else (truth == 0) & (rng.random(3000) < 0.4)
    given = np.where(wrong, (truth + (rng.integers(1, 4, 3000) if kind == "spread" else 1)) % 4, truth)
    monkeypatch.setattr("sgoif.scanning.estimate._SAMPLE", 1000)
    monkeypatch.setattr("sgoif.scanning.estimate._JUDGED", 500)  # four blocks of the others
    found = estimate(rows, given, 4)
    others = np.setdiff1d(np.arange(3000), found.sampled)
    assert 1000 <= len(found.sampled) < 1010 and len(found.predicted) == len(found.sampled)
    assert average_precision(found.p[others], wrong[others]) > 0.95
    assert abs(found.p[others].sum() / wrong[others].sum() - 1) < 0.2  # by first fits, 0.4 for pairs
    sure = others[(found.p[others] > 0.9) & wrong[others]]
    assert len(sure) > 50 and (found.suggested[sure, 0] == truth[sure]).mean() > 0.9
    assert (found.p_low <= found.p).all() and (found.p <= found.p_high).all()


def test_a_sample_has_some_of_every_class_and_does_not_depend_on_the_order(monkeypatch):
    monkeypatch.setattr("sgoif.scanning.estimate._SAMPLE", 300)
    rng = np.random.default_rng(0)
    ids, given = np.array([f"x{i}" for i in range(1500)]), np.where(np.arange(1500) < 30, 1, 0)
    rows = torch.from_numpy((rng.normal(size=(1500, 120)) + given[:, None]).astype(np.float32))
    order = rng.permutation(1500)
    first, again = (estimate_features(rows[how], ids[how], given[how], 2).sampled for how in (np.arange(1500), order))
    assert (given[first] == 1).sum() == 20 and 300 <= len(first) <= 320
    assert set(ids[first]) == set(ids[order][again])


def near_classes(kind, rate=0.04, seed=0):
    """Forty classes in pairs that look alike; wrong labels are the other of the pair, or any other."""
    rng, classes = np.random.default_rng(seed), 40
    centres = np.repeat(rng.normal(size=(classes // 2, 120)), 2, axis=0) + 0.45 * rng.normal(size=(classes, 120))
    truth = np.arange(3200) % classes
    rows = centres[truth] + 1.6 * rng.normal(size=(len(truth), 120))
    wrong = rng.random(len(truth)) < rate
    other = truth ^ 1 if kind == "near" else (truth + rng.integers(1, classes, len(truth))) % classes
    return torch.from_numpy(rows.astype(np.float32)), np.where(wrong, other, truth), wrong


def test_errors_that_go_to_near_classes_are_believed():
    """A few errors a class are too few to count which class they go to; which classes are near says it."""
    rows, given, wrong = near_classes("near")
    found = estimate(rows, given, 40)
    assert average_precision(found.p, wrong) > 0.9
    assert 0.8 < found.p.sum() / wrong.sum() < 1.25  # below 0.5 where errors are believed to be spread evenly


def test_errors_that_go_anywhere_are_not_believed_to_go_to_near_classes():
    rows, given, _ = near_classes("any")
    leaks = estimate(rows, given, 40).transition[~np.eye(40, dtype=bool)]
    assert leaks.max() < 1.1 * leaks.min()


@pytest.mark.data
def test_hard_images_of_a_small_clean_set_are_no_pattern_of_errors():
    """Of these labels 27 are flagged where a pattern has to gain only over as many spread errors as were counted."""
    images = data.fashion_mnist("train", 20_000)
    rows = np.random.default_rng(5).choice(20_000, 500, replace=False)
    pixels = check_features(images.pixels[rows].reshape(500, -1) / np.float32(255), 500)
    found = estimate(standardise(pixels, np.ones(500, bool)).inputs, images.labels[rows], 10)
    assert (found.p > 0.5).sum() <= 5
