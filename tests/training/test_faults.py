"""Trouble of ours and of the data never reaches the training; the contract of all tasks has the user's own."""

import numpy as np
import torch

import sgoif
from sgoif.files.locations import Place
from tests.training.loops import PLAN, GroupNormNet, data, fresh, make_loop, run_twins, take_step, train_watched, watch


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
    return make_loop([(torch.arange(48), *train_set)] * count)


def test_numerical_trouble_never_stops_the_training():
    (pixels, labels), holdout = data()
    monitor = watch(fresh(), holdout)
    for step in range(12):
        take_step(monitor, torch.arange(48), pixels * (float("nan") if step in (4, 5, 8) else 1.0), labels)
    run = monitor.close()
    assert monitor.counters["visits_not_finite"] == 3 * 48
    assert np.isfinite(run.table["harm"]).all()
    assert torch.isfinite(monitor.engine.directions()[monitor.engine.head.name]).all()


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
    monitor, run = run_twins(GroupNormNet, passes(train_set), (pixels, labels))
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
    assert "480 of 1,440 visits had a loss or scores that are not finite" in run.info["warnings"]["not_finite"]
    late = run.visits["step"] >= 20
    for name in ("harm", "worst", "confidence", "probe_margin", "harm_std"):
        assert np.isfinite(run.visits[name][late]).all(), name


def test_a_class_that_the_hold_out_lacks():
    train_set, (pixels, labels) = data()
    is_there = labels != 2
    _, run = run_twins(GroupNormNet, passes(train_set), (pixels[is_there], labels[is_there]))
    assert run.info["held_out_per_class"][2] == 0
    assert not (run.table["suggested_label"] == 2).any()


def test_a_disk_that_fails_at_the_end_leaves_the_run_in_memory_with_what_was_lost(tmp_path, monkeypatch):
    monitor = train_watched(epochs=1, out=str(tmp_path / "run"))
    monkeypatch.setattr(monitor.recorder.sink.opened, "retry_after_s", ())
    monkeypatch.setattr(Place, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    run = monitor.close()
    assert run.url is None and run.table["n_visits"].sum() == 48
    assert run.info["dropped_rows"] >= 48 and any("No space" in cause for cause in run.info["writing_faults"])
