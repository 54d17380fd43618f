"""What only shows while a training goes on is said once, and written into the run."""

import logging

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import Subset, TensorDataset

import sgoif
from sgoif.training.step_ids import IdNotices
from tests.training.loops import PLAN, data, fresh, train, watch


def one_epoch(model, monitor, dataset, ids_of=None, batch=8):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    pixels, labels = dataset.tensors
    for part in torch.randperm(len(labels), generator=torch.Generator().manual_seed(0)).split(batch):
        with monitor.step(part if ids_of is None else ids_of(part), labels[part]):
            F.cross_entropy(model(pixels[part]), labels[part]).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("names", [False, True])
def test_training_on_the_hold_out_is_noticed(caplog, names):
    """Before, nothing noticed it."""
    dataset = TensorDataset(*data(num=80)[0])
    named = [f"{i}.png" for i in range(80)]
    _, holdout = sgoif.split(sgoif.with_ids(dataset, ids=named) if names else dataset, fraction=0.4)
    model = fresh()
    monitor = watch(model, holdout, train_size=80)
    for _ in range(3):
        one_epoch(model, monitor, dataset, (lambda part: [named[i] for i in part]) if names else None)
    with caplog.at_level(logging.WARNING):
        run = monitor.close()
    text = run.info["warnings"]["trained_on_anchors"]
    # before, the count was that of the moment when it was noticed
    number = 36 if names else 32
    assert text.startswith(f"{number} of {number} hold-out examples were trained on in all") and "sgoif.split" in text
    assert text in caplog.messages
    assert f"Warning: {text}" in str(run) and "not trained on" not in str(run)  # before, neither


def test_a_sound_split_is_not_warned_of(caplog):
    dataset = TensorDataset(*data(num=80)[0])
    train_set, holdout = sgoif.split(dataset, fraction=0.4)
    model = fresh()
    monitor = watch(model, holdout, train_size=len(train_set))
    indices = torch.tensor(list(sgoif.inputs.ids.ids_of(train_set)))
    with caplog.at_level(logging.WARNING):
        one_epoch(model, monitor, TensorDataset(*(t[indices] for t in dataset.tensors)), lambda part: indices[part])
        run = monitor.close()
    assert "warnings" not in run.info


def test_another_dataset_that_counts_alike_is_not_taken_for_the_training_set(caplog):
    """Held out of a test set: its positions are ids of training examples, its labels are not theirs."""
    dataset, other = TensorDataset(*data(num=80)[0]), TensorDataset(*data(num=80, seed=5)[0])
    other = TensorDataset(other.tensors[0], (dataset.tensors[1] + torch.arange(80) % 3) % 4)
    model = fresh()
    monitor = watch(model, Subset(other, range(10, 50)), train_size=80)
    one_epoch(model, monitor, dataset)
    assert "warnings" not in monitor.close().info


def test_positions_in_a_batch_are_no_ids(caplog):
    """Before, nothing noticed that 80 examples were added up as 8."""
    dataset, holdout = TensorDataset(*data(num=80)[0]), data()[1]
    model = fresh()
    monitor = watch(model, holdout, train_size=80)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            one_epoch(model, monitor, dataset, lambda part: torch.arange(len(part)))
            monitor.flush()
    assert sum("positions in a batch" in message for message in caplog.messages) == 1
    run = monitor.close()
    assert "0..7" in run.info["warnings"]["batch_positions"] and "with_ids" in run.info["warnings"]["batch_positions"]
    assert "8 different ids, where train_size=80" in run.info["warnings"]["few_ids"]
    assert str(run).count("Warning: ") == 2 and "positions in a batch" in str(run)


@pytest.mark.parametrize("order", ["whole", "in order"])
def test_ids_that_begin_at_zero_are_not_taken_for_positions(order):
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout)
    parts = [torch.arange(48)] if order == "whole" else torch.arange(48).split(12)
    for part in [*parts] * 6:
        with monitor.step(part, train_set[1][part]):
            F.cross_entropy(model(train_set[0][part]), train_set[1][part]).backward()
    assert "warnings" not in monitor.close().info


def test_a_price_far_above_the_promise_is_said_once_with_the_figure(caplog):
    """Before, a tiny model was watched at four times its own step without a word."""
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout, plan=None, max_overhead=0.01)
    with caplog.at_level(logging.WARNING):
        train(model, train_set, monitor, epochs=6)
        run = monitor.close()
    assert sum("of the bare step" in message for message in caplog.messages) == 1
    text = run.info["warnings"]["overhead"]
    assert "max_overhead=0.01" in text and "A bare step takes" in text and "scoring" in text
    measured = float(text.split("costs ")[1].split("%")[0]) / 100
    assert measured == pytest.approx(run.info["overhead"], abs=0.02 * run.info["overhead"] + 0.01)


def test_the_rarest_plan_that_is_still_too_dear_is_said_while_training(caplog):
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout, plan=None, max_overhead=0.01)
    monitor.governor.plan = sgoif.Plan(refresh_every=320, observe_every=40, stride=16, early_steps=0)
    with caplog.at_level(logging.WARNING):
        train(model, train_set, monitor, epochs=81)
    assert any("even by the rarest plan" in message for message in caplog.messages)


def test_short_steps_are_told_their_cost_at_once_and_what_to_do(caplog):
    (train_set, holdout), said = data(), []
    model = fresh()
    monitor = watch(model, holdout, plan=None, max_overhead=0.05)
    with caplog.at_level(logging.WARNING):
        train(model, train_set, monitor, epochs=12, after=lambda step: said.append(len(caplog.messages)))
    (text,) = [message for message in caplog.messages if "sgoif.audit" in message]
    assert "a step of the training loop takes" in text and "times as long" in text and "max_overhead=0.05" in text
    assert said[20] == 1 and said[-1] == 1


def test_a_plan_that_scores_some_steps_only_is_said_once_and_its_other_visits_are_counted(caplog):
    """Before, most visits of a small model could be passed over without a word."""
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout, plan=None, max_overhead=0.05)
    monitor.governor.decide = lambda step, measured: sgoif.Plan(stride=4 if step < 160 else 8)
    with caplog.at_level(logging.INFO):
        train(model, train_set, monitor, epochs=30)
        run = monitor.close()
    (text,) = [record.message for record in caplog.records if "one step in" in record.message]
    assert "max_overhead=0.05" in text and "one step in 4 is scored" in text
    counts = run.info["counters"]
    assert counts["visits_passed_over"] == 30 * len(train_set[1]) - counts["visits"] > 0
    (told,) = [record.message for record in caplog.records if "visits offered" in record.message]
    assert f"{counts['visits_passed_over']} in steps that the plan does not score" in told
    assert run.info["forecast"]["step_share"] == monitor._first_forecast.step_share > monitor.forecast.step_share


def test_a_training_that_diverges_says_so():
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout, plan=PLAN)
    train(model, train_set, monitor, epochs=2)
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    train(model, train_set, monitor, epochs=2)
    text, count = monitor.close().info["warnings"]["not_finite"], 2 * len(train_set[1])
    assert f"{count:,} of {2 * count:,} visits had a loss or scores that are not finite" in text


def test_a_fixed_plan_promises_no_price(caplog):
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout, plan=PLAN)
    train(model, train_set, monitor, epochs=6)
    assert "warnings" not in monitor.close().info


def test_a_price_is_no_warning_about_the_figures():
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout, plan=None, max_overhead=0.001)
    train(model, train_set, monitor, epochs=6)
    run = monitor.close()
    assert list(run.info["warnings"]) == ["overhead"] and "Warning" not in str(run)


def test_a_run_that_refused_most_of_its_visits_says_so(caplog):
    """Before, `print(run)` was silent about it, and the line in the log was not a warning."""
    (pixels, labels), holdout = data(num=80)
    model = fresh()
    monitor = watch(model, holdout, train_size=80)
    for step, part in enumerate([*torch.arange(80).split(8)] * 3):
        with monitor.step(part if step < 2 else part[:3], labels[part]):
            F.cross_entropy(model(pixels[part]), labels[part]).backward()
    with caplog.at_level(logging.WARNING):
        run = monitor.close()
    assert any("240 visits offered, 16 recorded, 224 refused" in message for message in caplog.messages)
    assert "Warning: 224 of 240 visits were refused or lost (most often: SgoifError: step() got 3 ids for" in str(run)
    assert "the ids of 16 examples were seen, where train_size is 80" in str(run)


def test_rows_that_were_refused_are_a_warning_at_the_end(caplog):
    """Before, it was said below the level that loggers show by default."""
    (pixels, labels), holdout = data()
    model = fresh()
    monitor = watch(model, holdout)
    targets = labels.clone()
    targets[:5] = -100
    for part in torch.arange(48).split(12):
        with monitor.step(part, targets[part]):
            F.cross_entropy(model(pixels[part]), targets[part]).backward()
    with caplog.at_level(logging.WARNING):
        run = monitor.close()
    assert any("5 refused" in message for message in caplog.messages)
    assert "Warning" not in str(run)  # a few rows do no harm to the figures


def test_a_plan_says_when_its_cost_will_be_known():
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout)
    assert "cost: unknown until the first step; pass budget=sgoif.Budget(batch_size=...)" in str(monitor.plan)
    assert "of the bare step" in str(watch(fresh(), holdout, batch_size=12).plan)
    train(model, train_set, monitor, epochs=1)
    assert "of the bare step" in str(monitor.plan) and "unknown" not in str(monitor.plan)


def test_anchors_of_tags_are_noticed_by_the_ids_that_the_user_gave():
    from tests.training.multilabel import worlds

    inputs, given, _, holdout = worlds.data()
    model = worlds.fresh()
    named = sgoif.with_ids(TensorDataset(*holdout), ids=[1000 + i for i in range(len(holdout[0]))])
    monitor = worlds.watch(model, named)
    worlds.train(model, inputs, given, monitor, epochs=1)
    run = monitor.close()
    assert "hold-out examples were trained on" in run.info["warnings"]["trained_on_anchors"]


def test_labels_are_compared_with_those_that_were_held_out_under_the_same_ids():
    notices = IdNotices(1000, lambda *said, **how: None, range(100, 140), np.arange(40) % 4)
    notices.note(np.arange(60, 140), np.concatenate([np.zeros(40, np.int64), np.arange(40) % 4]))
    assert notices.num_trained_on == 40
