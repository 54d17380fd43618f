"""The labels of a run are judged by what it has seen: planted errors are found, of few classes and of many."""

import numpy as np
import pytest

import sgoif
from benchmarks.metrics import average_precision, calibration_of_top
from sgoif.judging.observations import Heldout
from sgoif.judging.predictions import TopPredictions
from sgoif.training.judged import NoProbabilities, judge_run, observe_examples
from tests.judging.made import make
from tests.training.worlds import in_order, many_clouds, watched_run, world


@pytest.fixture(scope="module")
def clean():
    """A training whose hold-out is right, and trusted."""
    train, holdout = world(held=500)
    return train, holdout, *watched_run(train, holdout, trusted=True)


@pytest.fixture(scope="module")
def noisy():
    """A training whose hold-out has as many wrong labels as the training set, and is not trusted."""
    train, holdout = world(holdout_rate=0.2, held=500)
    return train, holdout, *watched_run(train, holdout, trusted=False, epochs=20)


@pytest.mark.parametrize("world_of", ["clean", "noisy"])
def test_probabilities_find_planted_errors_and_are_right_about_the_first(world_of, request):
    (_, _, wrong), _, monitor, run = request.getfixturevalue(world_of)
    assert monitor.counters["faults"] == 0
    assert "judging_error" not in run.info and run.info["estimate"]["kind"] == "counted"
    # the clouds overlap by about 5%; chance is 0.20, p of the true posterior about 0.9
    assert average_precision(in_order(run), wrong) > 0.8
    for item in calibration_of_top(in_order(run), wrong):
        assert abs(item["value"] - item["true"]) < 0.15
    assert 0.6 < run.info["expected_errors"] / wrong.sum() < 1.5
    top = run.worst(50)
    assert (top["suggested_label"] != top["given_label"]).all()


def test_held_out_labels_are_judged_unless_people_have_verified_them(clean, noisy):
    _, (_, _, wrong), _, run = noisy
    held = run.holdout().to_pydict()
    p = np.array(held["p_mislabeled"])[np.argsort(held["id"])]
    assert average_precision(p, wrong[np.sort(held["id"])]) > 0.8
    assert 0.5 < p.sum() / wrong.sum() < 2
    assert set(clean[3].holdout()["p_mislabeled"].to_pylist()) == {0.0}


def test_many_classes_are_judged_too():
    train, holdout = many_clouds()
    monitor, run = watched_run(train, holdout, trusted=True, epochs=7)
    assert monitor.counters["faults"] == 0
    assert "judging_error" not in run.info
    p, wrong = in_order(run), train[2]
    assert average_precision(p, wrong) > 0.7
    for item in calibration_of_top(p, wrong):
        assert abs(item["value"] - item["true"]) < 0.15
    assert monitor.engine.directions()[monitor.engine.head.name].shape[0] == 1  # none per class


@pytest.fixture(scope="module")
def without_a_class():
    """A training whose hold-out has no example of class 3."""
    train, holdout = world(classes=6)
    kept = holdout[1] != 3
    holdout = tuple(part[kept] for part in holdout[:2])
    return train, holdout, *watched_run(train, holdout, trusted=True)


@pytest.mark.parametrize("how", ["watch", "audit"])
def test_a_class_without_a_held_out_example_is_not_judged_and_the_others_are(how, without_a_class):
    train, holdout, monitor, run = without_a_class
    if how == "audit":
        run = sgoif.audit(monitor.model, train[:2], anchors=holdout, trusted=True)
    p, given = in_order(run), in_order(run, "given_label")
    assert (np.isnan(p) == (given == 3)).all()  # before, nobody had a probability
    assert average_precision(p[given != 3], train[2][given != 3]) > 0.7


@pytest.mark.parametrize(("world_of", "floor"), [("clean", 0.8), ("noisy", 0.7)])
def test_an_audit_is_judged_by_what_it_sees_once(world_of, floor, request):
    train, holdout, monitor, _ = request.getfixturevalue(world_of)
    run = sgoif.audit(monitor.model, train[:2], anchors=holdout[:2], trusted=world_of == "clean")
    assert "judging_error" not in run.info and not run.info["estimate"]["is_by_order"]
    assert average_precision(in_order(run), train[2]) > floor


def table(made, visits=1):
    """A run's table of made examples: the last prediction, and means over visits that say nothing."""
    p = np.exp(made.logs)
    rows, others = np.arange(len(p)), np.where(np.arange(4) == made.given[:, None], 0, p)
    own, best = p[rows, made.given], others.max(1)
    means = {f"runner_up{tail}": np.full(len(p), -1) for tail in ("", "_2", "_3")}
    means |= {f"p_runner_up{tail}": np.zeros(len(p)) for tail in ("", "_2", "_3")}
    last = {"p_given_last": own, "margin_last": np.log(own / best), "runner_up_last": others.argmax(1)}
    known = {"id": rows, "given_label": made.given, "n_visits": np.full(len(p), visits)}
    return known | {"p_given": np.full(len(p), 0.5), "loss": -np.log(own)} | means | last


def test_the_last_prediction_is_asked_and_the_mean_loss_of_a_training_besides():
    made = make(300)
    found = observe_examples(table(made, visits=3), 4)
    p = np.exp(found.final.logs(slice(None)))
    rows = np.arange(300)
    np.testing.assert_allclose(p[rows, made.given], np.exp(made.logs)[rows, made.given], atol=1e-3)
    np.testing.assert_array_equal(found.mean_loss, table(made)["loss"])
    assert found.over_visits is not None
    audited = observe_examples(table(made, visits=1), 4)
    assert audited.mean_loss is None and audited.over_visits is None


def test_labels_of_classes_without_enough_held_out_examples_are_ranked_only():
    made, held = make(1500), make(400, seed=5)
    known = np.array([True, True, False, True])
    judge = judge_run(table(made), Heldout(labels=held.given, predictions=TopPredictions.of(held.logs)), known)
    assert np.isfinite(judge.judge(table(made)).p).all()
    np.testing.assert_array_equal(judge.shows(made.given), known[made.given])
    assert not judge.shows(np.array([-1])).any()
    assert judge.facts(12.0)["expected_errors"] == 12.0 and judge.facts(0.0)["estimate"]["kind"] == "counted"


@pytest.mark.parametrize(
    ("change", "known", "message"),
    [
        ({name: np.zeros(0, int) for name in ("id", "given_label")}, [True] * 4, "no training example was scored"),
        ({"given_label": np.full(300, -1)}, [True] * 4, "no target names one class"),
        ({}, [True, False, False, False], "1 of 4 classes have enough held-out examples, and two are needed"),
    ],
)
def test_why_nothing_is_judged(change, known, message):
    made = make(300)
    with pytest.raises(NoProbabilities, match=message):
        judge_run(table(made) | change, make(100, seed=5).heldout(), np.array(known))
