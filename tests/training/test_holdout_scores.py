"""What a run sees of its own hold-out: scores by the other fold, and a noisy hold-out that judges its own labels."""

import numpy as np
import pytest
import torch
from torch import nn

import sgoif
from sgoif.training.holdout_scores import FIRST_CLEAN, HOLDOUT_SIGNALS
from tests.training.loops import take_step
from tests.training.worlds import watched_run, world


@pytest.fixture(scope="module")
def noisy():
    """A training whose hold-out has as many wrong labels as the training set, and is not trusted."""
    train, holdout = world(holdout_rate=0.2, held=500)
    return holdout, *watched_run(train, holdout, trusted=False, epochs=20)


def test_a_noisy_hold_out_loses_trust_where_it_is_wrong(noisy):
    (_, _, wrong), monitor, _ = noisy
    trust = monitor.engine.anchors.trust.numpy()
    assert trust[wrong].mean() < 0.3 and trust[~wrong].mean() > 0.9


def test_every_held_out_example_that_was_seen_has_its_scores(noisy):
    (_, labels, wrong), monitor, run = noisy
    table = monitor.holdout_scores.table(monitor.engine)
    rows = monitor.holdout_scores.rows_seen(monitor.engine)
    np.testing.assert_array_equal(table["given_label"], labels[rows])
    assert all(np.isfinite(table[name]).all() for name in HOLDOUT_SIGNALS)
    assert not table["trusted"].any() and (table["belief"][wrong[rows]].mean() < table["belief"][~wrong[rows]].mean())
    for name in ("harm_solved", "worst_solved", "probe_loss", "loss"):  # high where a label hurts
        assert table[name][wrong[rows]].mean() > table[name][~wrong[rows]].mean() + table[name].std() / 2, name
    assert set(table) <= set(run.holdout().column_names)


def test_what_a_judge_sees_of_the_hold_out_is_what_the_head_says_of_it(noisy):
    (_, labels, _), monitor, _ = noisy
    engine, rows = monitor.engine, monitor.holdout_scores.rows_seen(monitor.engine)
    held = monitor.holdout_scores.heldout(engine)
    expected = (engine.features[rows].float() @ engine.head_weight().float().mT).log_softmax(1)
    np.testing.assert_allclose(held.predictions.logs(slice(None)), expected, atol=1e-4)
    np.testing.assert_array_equal(held.labels, labels[rows])
    assert not held.trusted


def watch_wide_head(inputs=600, classes=3, held=120, steps=12, trusted=False):
    """The monitor of a wide head, whose hold-out has been looked at a few times."""
    torch.manual_seed(0)
    model, rows = nn.Linear(inputs, classes), torch.randn(held + 64, inputs)
    labels = torch.arange(held + 64) % classes
    plan = sgoif.Plan(refresh_every=2, examples_per_refresh=60)
    anchors, budget = (rows[64:], labels[64:]), sgoif.Budget(plan=plan)
    monitor = sgoif.watch(model, anchors=anchors, train_size=64, trusted=trusted, budget=budget)
    for step in range(steps):
        chosen = torch.arange(16) + 16 * (step % 4)
        take_step(monitor, chosen, rows[chosen], labels[chosen])
    assert monitor.counters["faults"] == 0
    return monitor


def test_scores_are_continued_from_a_state():
    monitor = watch_wide_head()
    scores, resumed = monitor.holdout_scores, watch_wide_head(steps=3).holdout_scores
    resumed.load_state_dict(scores.state_dict())
    found, expected = resumed.state_dict(), scores.state_dict()
    assert {"total", "mass", "suggested", "refreshes", "next_clean"} < set(found)
    for name in ("total", "mass", "suggested", "refreshes", "next_clean"):
        np.testing.assert_array_equal(found[name], expected[name])
    assert scores.state_dict()["total"].shape == (120, len(HOLDOUT_SIGNALS))  # and no square of inputs or classes


@pytest.mark.parametrize("trusted", [False, True])
def test_labels_as_given_are_judged_ever_more_rarely(trusted, monkeypatch):
    judged = []
    place = "sgoif.training.holdout_scores.HoldoutScores.clean"
    monkeypatch.setattr(place, lambda scores, engine: judged.append(scores._refreshes))
    watch_wide_head(steps=2 * 4 * FIRST_CLEAN + 2, trusted=trusted)
    assert judged == ([] if trusted else [FIRST_CLEAN, 2 * FIRST_CLEAN, 4 * FIRST_CLEAN])


def test_a_hold_out_of_one_class_is_left_as_it_is():
    monitor = watch_wide_head()
    scores = monitor.holdout_scores
    scores.labels = np.zeros_like(scores.labels)
    before = monitor.engine.anchors.trust.clone()
    scores.clean(monitor.engine)
    assert torch.equal(monitor.engine.anchors.trust, before)
