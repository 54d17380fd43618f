"""Trouble: ours never reaches the training, and the user's own passes through."""

import logging

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import sgoif
from tests.training.loops import PLAN, data, fresh, run_twins, train, watch


class Pictures(torch.utils.data.Dataset):
    """A hold-out of which some pictures cannot be decoded."""

    def __init__(self, pixels, targets, broken):
        self.pixels, self.targets, self.broken = pixels, targets, broken

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        if index in self.broken:
            raise OSError(f"cannot identify image file {index}")
        return self.pixels[index], int(self.targets[index])


def passes(train_set, count=24):
    """A loop of so many steps over all of the training set."""

    def loop(model, step):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(count):
            with step(torch.arange(48), train_set[1]):
                F.cross_entropy(model(train_set[0]), train_set[1]).backward()
            optimizer.step()
            optimizer.zero_grad()

    return loop


def test_numerical_trouble_never_stops_the_training(caplog):
    train_set, holdout = data()
    pixels, labels = train_set
    model = fresh()
    monitor = watch(model, holdout)
    for step in range(12):
        x = pixels * (float("nan") if step in (4, 5, 8) else 1.0)
        with monitor.step(torch.arange(48), labels):
            F.cross_entropy(model(x), labels).backward()
        model.zero_grad()
    run = monitor.close()
    assert monitor.counters["visits_not_finite"] == 3 * 48
    assert np.isfinite(run.table["harm"]).all()
    monitor.engine.settle()
    assert torch.isfinite(monitor.engine.directions()[monitor.engine.head.name]).all()


def test_an_error_of_our_own_is_counted_logged_once_and_kept_from_the_user(monkeypatch, caplog):
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout)
    train(model, train_set, monitor, epochs=1)

    def broken(*_, **__):
        raise RuntimeError("a bug in the monitor")

    monkeypatch.setattr(monitor.engine, "_score_queue", broken)
    with caplog.at_level(logging.WARNING):
        train(model, train_set, monitor, epochs=6)
    assert monitor.faults == {"RuntimeError: a bug in the monitor": 20}
    assert not monitor.is_on
    assert sum("could not be scored; the training goes on" in message for message in caplog.messages) == 1


def test_the_users_own_exception_passes_through():
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout)
    with pytest.raises(KeyError), monitor.step([1], train_set[1][:1]):
        raise KeyError("mine")
    train(model, train_set, monitor)
    assert monitor.counters["faults"] == 0


def test_a_step_that_is_entered_and_never_left_costs_itself_alone():
    train_set, holdout = data()

    def loop(model, step):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(24):
            step(torch.arange(48), train_set[1]).__enter__()
            assert not any(module._forward_hooks for module in model.modules())
            with step(torch.arange(48), train_set[1]):
                F.cross_entropy(model(train_set[0]), train_set[1]).backward()
            optimizer.step()
            optimizer.zero_grad()

    _, run = run_twins(lambda: fresh(), loop, holdout)
    assert len(run.visits["id"]) == 24 * 48


@pytest.mark.parametrize("odd", ["two backward passes", "a single number as target"])
def test_from_the_second_step_on_nothing_of_ours_leaves_a_step(odd):
    (pixels, labels), holdout = data()
    model = fresh()
    monitor = watch(model, holdout)
    for step in range(4):
        is_odd = step == 1
        targets = labels[0] if is_odd and odd == "a single number as target" else labels
        with monitor.step(torch.arange(48), targets):
            loss = F.cross_entropy(model(pixels), labels)
            loss.backward(retain_graph=True)
            if is_odd and odd == "two backward passes":
                loss.backward()
        model.zero_grad()
    counters = monitor.counters
    assert counters["visits"] == 3 * 48 and counters["visits_refused"] == counters["visits_offered"] - 3 * 48 > 0


def test_a_picture_that_cannot_be_read_costs_one_refresh_and_is_left_out():
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, Pictures(*holdout, broken={5, 17}), plan=sgoif.Plan(refresh_every=2, observe_every=2))
    passes(train_set)(model, monitor.step)  # a refresh reads all of the hold-out
    assert monitor.is_on and sum(monitor.faults.values()) == 2
    assert monitor.refreshes == 12
    run = monitor.close()
    assert len(run.visits["id"]) == 24 * 48 and np.isfinite(run.visits["harm"]).all()
    assert np.abs(run.visits["harm"][-48:]).max() > 0


def test_a_held_out_picture_that_gives_no_number_is_left_out_of_every_refresh():
    train_set, (pixels, labels) = data()
    pixels[7] = float("nan")
    monitor, run = run_twins(lambda: fresh(), passes(train_set), (pixels, labels))
    refreshes = 24 // PLAN.refresh_every
    assert run.info["counters"]["holdout_not_finite"] in range(1, refreshes + 1)  # 16 of 24 in each
    assert torch.isfinite(monitor.engine.anchors.gradients["fc"]).all()


def test_a_model_that_was_not_finite_for_a_while_is_judged_again_once_it_is():
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout, gate="paper", planned_steps=40)
    loop = passes(train_set, count=10)
    loop(model, monitor.step)
    kept = {key: value.clone() for key, value in model.state_dict().items()}
    model.load_state_dict({key: value * float("nan") for key, value in kept.items()})
    loop(model, monitor.step)
    model.load_state_dict(kept)
    loop(model, monitor.step)
    assert monitor.faults == {}
    run = monitor.close()
    assert run.info["counters"]["visits_not_finite"] == 10 * 48 and run.info["counters"]["holdout_not_finite"] > 0
    late = run.visits["step"] >= 20
    for name in ("harm", "worst", "confidence", "probe_margin", "harm_std"):
        assert np.isfinite(run.visits[name][late]).all(), name


def test_a_class_that_the_hold_out_lacks():
    train_set, (pixels, labels) = data()
    is_there = labels != 2
    _, run = run_twins(lambda: fresh(), passes(train_set), (pixels[is_there], labels[is_there]), num_classes=4)
    assert run.info["held_out_per_class"][2] == 0
    assert not (run.table["suggested_label"] == 2).any()


def test_a_disk_that_fails_at_the_end_leaves_the_run_in_memory_with_what_was_lost(tmp_path, monkeypatch):
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout, out=str(tmp_path / "run"))
    train(model, train_set, monitor, epochs=1)
    from sgoif.files.locations import Place

    monkeypatch.setattr(monitor.recorder.sink.opened, "retry_after_s", ())
    monkeypatch.setattr(Place, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    run = monitor.close()
    assert run.url is None and run.table["n_visits"].sum() == 48
    assert run.info["dropped_rows"] >= 48 and any("No space" in cause for cause in run.info["writing_faults"])
