"""The one judge: planted errors are found and counted, whatever the model has learnt by heart."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import sgoif
from sgoif.errors import SgoifError
from sgoif.judging.fitting import fit_noise
from sgoif.judging.heads import PredictedHead
from sgoif.judging.judge import _choose_fit, fit_judge, sample_rows
from sgoif.judging.observations import Heldout, Observations
from sgoif.judging.predictions import TopPredictions
from tests.judging.made import average_precision, make

HELD = make(800, seed=5)


def check(made, verdict, floor=0.97):
    """Errors are found, there are about as many, and the right class is suggested."""
    p, wrong = verdict.labels.p, made.wrong
    assert verdict.kind == "counted" and verdict.no_p_reason is None
    assert average_precision(p, wrong) > floor
    assert 0.5 < p.sum() / wrong.sum() < 2
    assert (verdict.labels.p_low <= p).all() and (p <= verdict.labels.p_high).all()
    found = (p > 0.5) & wrong
    assert (verdict.labels.suggested[found, 0] == made.true[found]).mean() > 0.9


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("rate", [0.02, 0.1, 0.4])
def test_planted_errors_are_found_among_predictions_that_have_not_seen_them(rate, pairs):
    made = make(rate=rate, pairs=pairs and rate < 0.4)
    verdict = sgoif.judge(made.observations())
    check(made, verdict)
    leaks = verdict.transition[~np.eye(4, dtype=bool)]
    assert abs(1 - np.diag(verdict.transition).mean() - made.wrong.mean()) < 0.4 * rate
    if pairs and rate < 0.4:
        assert verdict.transition[0, 1] > 5 * verdict.transition[0, 2] and leaks.max() < 2 * rate


@pytest.mark.parametrize("rate", [0.1, 0.2, 0.4])
def test_the_number_of_many_errors_is_that_of_predictions_as_they_are(rate):
    """Judged by a noise that was fitted to recovered predictions, 14% of 1,184 errors were missing."""
    made = make(rate=rate, apart=2.5)
    assert sgoif.judge(made.observations()).labels.p.sum() == pytest.approx(made.wrong.sum(), rel=0.08)


def test_no_errors_are_none():
    verdict = sgoif.judge(make(rate=0.0).observations())
    assert verdict.kind == "clean" and verdict.no_p_reason is None
    assert (verdict.labels.p > 0.5).sum() <= 2 and verdict.labels.p.sum() < 10


def test_where_nobody_can_tell_labels_are_ranked_and_it_is_said():
    verdict = sgoif.judge(make(rate=0.0, apart=1.5).observations())
    assert verdict.kind == "unknown" and "between none and 3" in verdict.no_p_reason
    assert np.isfinite(verdict.labels.p).all()


def test_a_useless_second_view_does_no_harm():
    made = make()
    noise = np.random.default_rng(0).normal(size=made.logs.shape)
    views = {"log_p": TopPredictions.of(made.logs), "log_p_noise": TopPredictions.of(np.log(np.full_like(noise, 0.25)))}
    check(made, sgoif.judge(Observations(ids=np.arange(3000), labels=made.given, views=views)))


@pytest.mark.parametrize("mean_loss", [True, False])
@pytest.mark.parametrize("raised", [0.0, 1.0, 2.0])
def test_what_was_learnt_by_heart_is_taken_off(raised, mean_loss):
    made = make()
    seen = made.trained(HELD.heldout(), raised=raised, mean_loss=mean_loss)
    judge = fit_judge(seen)
    check(made, judge.verdict(seen))
    assert not judge.is_by_order


def test_where_labels_were_learnt_by_heart_the_mean_loss_has_the_order():
    made = make()
    seen = made.trained(HELD.heldout(), raised=9.0, blur=1.0)
    judge = fit_judge(seen)
    assert judge.is_by_order and judge.facts()["is_by_order"]
    check(made, judge.verdict(seen))
    blind = fit_judge(replace(seen, mean_loss=None, over_visits=None))
    assert average_precision(blind.judge(seen).p, made.wrong) < 0.3  # its last word has no order


@pytest.mark.parametrize("raised", [1.0, 2.0, 3.0, 9.0])
@pytest.mark.parametrize("mean_loss", [True, False])
def test_a_trusted_holdout_never_calls_a_set_with_errors_clean(raised, mean_loss):
    """It shows no errors, so nobody knows what learning by heart did to those of the training rows."""
    made = make()
    found = fit_judge(made.trained(HELD.heldout(trusted=True), raised=raised, mean_loss=mean_loss))
    assert found.kind != "clean"  # before, of labels that are raised by 2, with 314 of 3,000 wrong


def test_a_trusted_holdout_of_a_model_that_learnt_nothing_by_heart():
    made = make()
    seen = made.trained(HELD.heldout(trusted=True), raised=0.0)
    check(made, fit_judge(seen).verdict(seen))


def test_held_out_labels_are_judged_by_the_same_noise():
    judge = fit_judge(make().trained(HELD.heldout(), raised=2.0))
    found = judge.judge_unseen(HELD.heldout())
    assert average_precision(found.p, HELD.wrong) > 0.95 and 0.5 < found.p.sum() / HELD.wrong.sum() < 2


@pytest.mark.parametrize("raised", [None, 2.0, 9.0])
def test_blocks_are_judged_as_the_whole_is(raised, monkeypatch):
    made = make()
    blur = 1.0 if raised == 9.0 else 0.0
    seen = made.observations() if raised is None else made.trained(HELD.heldout(), raised=raised, blur=blur)
    judge = fit_judge(seen)
    whole = sgoif.judge(seen, by=judge).labels
    parts = [sgoif.judge(take(seen, rows), by=judge).labels for rows in np.array_split(np.arange(3000), 7)]
    monkeypatch.setattr("sgoif.judging.judge._NUMBERS", 4 * 500)
    blocks = sgoif.judge(seen, by=judge).labels
    for name, values in whole._asdict().items():
        np.testing.assert_allclose(np.concatenate([getattr(part, name) for part in parts]), values, atol=1e-6)
        np.testing.assert_allclose(getattr(blocks, name), values, atol=1e-6)


def take(seen, rows):
    return replace(
        seen,
        ids=seen.ids[rows],
        labels=seen.labels[rows],
        views={name: view.take(rows) for name, view in seen.views.items()},
        over_visits=None if seen.over_visits is None else seen.over_visits.take(rows),
        mean_loss=None if seen.mean_loss is None else seen.mean_loss[rows],
    )


def test_labels_that_are_none_have_no_probability():
    made = make()
    labels = np.where(np.arange(3000) < 50, -1, made.given)
    found = sgoif.judge(replace(made.observations(), labels=labels)).labels
    assert (np.isnan(found.p) == (labels < 0)).all() and (found.suggested[:50] == -1).all()


@pytest.mark.parametrize("held", [True, False])
def test_classes_without_a_label_are_left_out_and_the_others_keep_their_numbers(held):
    """Six classes are predicted, and two of them nobody has."""
    made, some = make(), np.array([0, 2, 3, 5])

    def spread(logs):
        found = np.full((len(logs), 6), np.log(1e-6))
        found[:, some] = logs
        return TopPredictions.of(found)

    heldout = Heldout(labels=some[HELD.given], predictions=spread(HELD.logs)) if held else None
    seen = Observations(ids=np.arange(3000), labels=some[made.given], views={"a": spread(made.logs)}, heldout=heldout)
    judge = fit_judge(seen)
    verdict = judge.verdict(seen)
    assert judge.classes.tolist() == some.tolist() and verdict.transition.shape == (6, 6)
    assert verdict.transition[1].tolist() == np.eye(6)[1].tolist() and (verdict.transition[:, 4] == np.eye(6)[4]).all()
    assert set(np.unique(verdict.labels.suggested)) <= {-1, *some.tolist()}
    check(replace(made, true=some[made.true], given=some[made.given]), verdict)


def test_a_class_without_held_out_rows_is_judged_like_the_others():
    made, rows = make(), HELD.given != 3
    held = Heldout(labels=HELD.given[rows], predictions=TopPredictions.of(HELD.logs[rows]))
    verdict = sgoif.judge(made.trained(held, raised=1.0))
    assert np.isfinite(verdict.labels.p).all()
    assert average_precision(verdict.labels.p[made.given == 3], made.wrong[made.given == 3]) > 0.9


def test_one_class_is_nothing_to_judge():
    made = make(200)
    with pytest.raises(SgoifError, match="at least two classes, and 1 can be judged"):
        sgoif.judge(replace(made.observations(), labels=np.zeros(200, np.int64)))


def test_a_sample_has_some_of_every_class_and_does_not_depend_on_the_order():
    rng = np.random.default_rng(0)
    ids, given = np.array([f"x{i}" for i in range(1500)]), np.where(np.arange(1500) < 30, 1, 0)
    order = rng.permutation(1500)
    first, again = sample_rows(ids, given, 300), order[sample_rows(ids[order], given[order], 300)]
    assert (given[first] == 1).sum() == 20 and 300 <= len(first) <= 320
    assert set(first) == set(again)


def fit_held(count, seed):
    made = make(count, seed=seed)
    logs, labels = torch.from_numpy(made.logs).float(), torch.from_numpy(made.given)
    return fit_noise([PredictedHead(logs)], made.given, 4), logs, labels


def test_a_fit_that_has_seen_the_held_out_labels_must_be_clearly_likelier():
    alone, logs, labels = fit_held(800, 5)
    other = replace(alone, expected_accuracy=0.5)  # the same, without having seen them
    assert _choose_fit(alone, other, logs, labels).expected_accuracy == 0.5


def test_a_fit_that_shows_errors_goes_before_a_likelier_one_that_does_not():
    alone, logs, labels = fit_held(800, 5)
    silent = replace(alone, expected_accuracy=0.5, belief=replace(alone.belief, kind="unknown"))
    assert alone.belief.kind == "counted"
    assert _choose_fit(alone, silent, logs, labels).belief.kind == "counted"
    assert _choose_fit(silent, alone, logs, labels).belief.kind == "counted"
