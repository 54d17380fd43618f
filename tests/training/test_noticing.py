"""What only shows while a training goes on is said once, and written into the run."""

import logging

import pytest
import torch
from torch.utils.data import Subset, TensorDataset

import sgoif
from tests.training.loops import data, fresh, make_loop, take_step, train, train_watched, watch
from tests.training.multilabel import worlds


def run_of(dataset, holdout, *, epochs=1, ids_of=lambda part: part):
    """A run over a dataset in batches of eight; ``ids_of`` names the examples at some positions."""
    (pixels, labels), model = dataset.tensors, fresh()
    monitor = watch(model, holdout, train_size=len(labels))
    parts = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0)).split(8)
    for _ in range(epochs):
        make_loop((ids_of(part), pixels[part], labels[part]) for part in parts)(model, monitor.step)
        monitor.flush()
    return monitor.close()


@pytest.mark.parametrize("names", [False, True])
def test_training_on_the_hold_out_is_noticed(caplog, names):
    """Before, nothing noticed it."""
    dataset = TensorDataset(*data(num=80)[0])
    named = [f"{i}.png" for i in range(80)]
    _, holdout = sgoif.split(sgoif.with_ids(dataset, ids=named) if names else dataset, fraction=0.4)
    with caplog.at_level(logging.WARNING):
        run = run_of(dataset, holdout, epochs=3, ids_of=lambda part: [named[i] for i in part] if names else part)
    text = run.info["warnings"]["trained_on_anchors"]
    # before, the count was that of the moment when it was noticed
    number = 36 if names else 32
    assert text.startswith(f"{number} of {number} hold-out examples were trained on in all") and "sgoif.split" in text
    assert text in caplog.messages
    assert f"Warning: {text}" in str(run) and "not trained on" not in str(run)  # before, neither


def test_a_sound_split_is_not_warned_of():
    dataset = TensorDataset(*data(num=80)[0])
    train_set, holdout = sgoif.split(dataset, fraction=0.4)
    indices = torch.tensor(list(sgoif.inputs.ids.ids_of(train_set)))
    run = run_of(TensorDataset(*(t[indices] for t in dataset.tensors)), holdout, ids_of=lambda part: indices[part])
    assert "warnings" not in run.info


def test_another_dataset_that_counts_alike_is_not_taken_for_the_training_set():
    """Held out of a test set: its positions are ids of training examples, its labels are not theirs."""
    dataset, other = TensorDataset(*data(num=80)[0]), TensorDataset(*data(num=80, seed=5)[0])
    other = TensorDataset(other.tensors[0], (dataset.tensors[1] + torch.arange(80) % 3) % 4)
    assert "warnings" not in run_of(dataset, Subset(other, range(10, 50))).info


def test_positions_in_a_batch_are_no_ids(caplog):
    """Before, nothing noticed that 80 examples were added up as 8."""
    dataset, holdout = TensorDataset(*data(num=80)[0]), data()[1]
    with caplog.at_level(logging.WARNING):
        run = run_of(dataset, holdout, epochs=3, ids_of=lambda part: torch.arange(len(part)))
    assert sum("positions in a batch" in message for message in caplog.messages) == 1
    assert "0..7" in run.info["warnings"]["batch_positions"] and "with_ids" in run.info["warnings"]["batch_positions"]
    assert "8 different ids, where train_size=80" in run.info["warnings"]["few_ids"]
    assert str(run).count("Warning: ") == 2 and "positions in a batch" in str(run)


@pytest.mark.parametrize("size", [48, 12])
def test_ids_that_begin_at_zero_are_not_taken_for_positions(size):
    (pixels, labels), holdout = data()
    monitor = watch(fresh(), holdout)
    for part in [*torch.arange(48).split(size)] * 6:
        take_step(monitor, part, pixels[part], labels[part])
    assert "warnings" not in monitor.close().info  # nor is the price of a plan that was asked for


def test_a_price_far_above_the_promise_is_said_once_with_the_figure(caplog):
    """Before, a tiny model was watched at four times its own step without a word. It says nothing of the findings."""
    with caplog.at_level(logging.WARNING):
        run = train_watched(epochs=6, plan=None, max_overhead=0.01).close()
    assert sum("of the bare step" in message for message in caplog.messages) == 1
    text = run.info["warnings"]["overhead"]
    assert "max_overhead=0.01" in text and "A bare step takes" in text and "scoring" in text
    measured = float(text.split("costs ")[1].split("%")[0]) / 100
    assert measured == pytest.approx(run.info["overhead"], abs=0.02 * run.info["overhead"] + 0.01)
    assert list(run.info["warnings"]) == ["overhead"] and "Warning" not in str(run)


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


def test_a_run_that_refused_most_of_its_visits_says_so(caplog):
    """Before, `print(run)` was silent about it, and the line in the log was not a warning."""
    (pixels, labels), holdout = data(num=80)
    monitor = watch(fresh(), holdout, train_size=80)
    for step, part in enumerate([*torch.arange(80).split(8)] * 3):
        take_step(monitor, part if step < 2 else part[:3], pixels[part], labels[part])
    with caplog.at_level(logging.WARNING):
        run = monitor.close()
    assert any("240 visits offered, 16 recorded, 224 refused" in message for message in caplog.messages)
    assert "Warning: 224 of 240 visits were refused or lost (most often: SgoifError: step() got 3 ids for" in str(run)
    assert "the ids of 16 examples were seen, where train_size is 80" in str(run)


def test_a_few_rows_that_were_refused_are_a_warning_in_the_log_alone(caplog):
    """Before, it was said below the level that loggers show by default."""
    (pixels, labels), holdout = data()
    monitor = watch(fresh(), holdout)
    targets = torch.cat([torch.full((5,), -100), labels[5:]])
    for part in torch.arange(48).split(12):
        take_step(monitor, part, pixels[part], targets[part])
    with caplog.at_level(logging.WARNING):
        run = monitor.close()
    assert any("5 refused" in message for message in caplog.messages)
    assert "Warning" not in str(run)  # a few rows do no harm to the figures


def test_anchors_of_tags_are_noticed_by_the_ids_that_the_user_gave():
    inputs, given, _, holdout = worlds.data()
    model = worlds.fresh()
    named = sgoif.with_ids(TensorDataset(*holdout), ids=[1000 + i for i in range(len(holdout[0]))])
    monitor = worlds.watch(model, named)
    worlds.train(model, inputs, given, monitor, epochs=1)
    run = monitor.close()
    assert "hold-out examples were trained on" in run.info["warnings"]["trained_on_anchors"]
