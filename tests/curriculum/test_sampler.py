"""Weights while the training goes on: asked for, used, saved; in the loss and by a sampler."""

import io
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import sgoif
from sgoif import finish
from sgoif.curriculum.weights import FLOOR
from sgoif.errors import SgoifError
from sgoif.experimental import InfluenceSampler
from tests.grouped import grouped
from tests.training.loops import GroupNormNet, batches, data, fresh, run_twins, watch
from tests.training.worlds import world

EPOCHS, BATCH = 6, 50


def clouds(**settings):
    """Watch a small network that is to learn clouds with a fifth of the labels wrong."""
    (points, given, wrong), holdout = world(num=600, held=200, rate=0.2, holdout_rate=0.2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    planned = EPOCHS * len(given) // BATCH
    plan = sgoif.Plan(refresh_every=10, examples_per_refresh=256)
    arguments = {"planned_steps": planned, "plan": plan, **settings}
    monitor = sgoif.watch(model, optimizer, anchors=holdout[:2], train_size=len(given), **grouped(arguments))
    return model, optimizer, monitor, (points, given, wrong)


def learn(model, optimizer, monitor, points, given, *, start=0, stop=EPOCHS, tell=True):
    """Train by weights, and return the mean weight of every step."""
    told = []
    for epoch in range(start, stop):
        for ids in torch.randperm(len(given), generator=torch.Generator().manual_seed(epoch)).split(BATCH):
            w = monitor.weights(ids)
            with monitor.step(ids, given[ids], weights=w if tell else None):
                losses = F.cross_entropy(model(points[ids]), given[ids], reduction="none")
                ((w * losses).sum() / w.sum()).backward()
            optimizer.step()
            optimizer.zero_grad()
            told.append(float(w.mean()))
    return told


@dataclass
class Learned:
    """A training by weights that is at its end, and what was saved of it after four of its six epochs."""

    monitor: object
    told: list  # the mean weight of every step
    saved: bytes
    kept: torch.Tensor  # the weights when it was saved

    def resume(self):
        model, optimizer, monitor, found = clouds()
        state = torch.load(io.BytesIO(self.saved))
        for name, part in (("model", model), ("optim", optimizer), ("monitor", monitor)):
            part.load_state_dict(state[name])
        return model, optimizer, monitor, found


@pytest.fixture(scope="module")
def learned():
    model, optimizer, monitor, (points, given, _) = clouds()
    told = learn(model, optimizer, monitor, points, given, stop=4)
    file = io.BytesIO()
    torch.save({"monitor": monitor.state_dict(), "model": model.state_dict(), "optim": optimizer.state_dict()}, file)
    kept = monitor.weights(torch.arange(len(given)))
    told += learn(model, optimizer, monitor, points, given, start=4)
    return Learned(monitor, told, file.getvalue(), kept)


def test_weights_are_one_at_first_and_then_tell_wrong_from_right(learned):
    begins = next(i for i, mean in enumerate(learned.told) if mean < 1)
    assert 0.5 <= begins / len(learned.told) < 0.52 and min(learned.told) < 0.9
    *_, (_, given, wrong) = clouds()
    weights = learned.monitor.weights(torch.arange(len(given))).numpy()
    assert weights.min() >= np.float32(FLOOR) and weights.max() == 1
    assert weights[wrong].mean() < 0.6 * weights[~wrong].mean()
    assert learned.monitor.faults == {}
    # what was not seen weighs one
    assert learned.monitor.weights(torch.tensor([5_000, 6_000])).tolist() == [1, 1]
    assert learned.monitor.weights([]).shape == (0,)


def test_many_examples_are_judged_by_what_a_sample_taught(learned, monkeypatch):
    whole = finish.judge_so_far(learned.monitor)
    monkeypatch.setattr(finish, "_SAMPLE", 400)
    monkeypatch.setattr(finish, "_AT_ONCE", 250)
    found = finish.judge_so_far(learned.monitor)
    assert found.keys() == whole.keys() and len(found["p_mislabeled"]) == 600
    assert np.corrcoef(found["p_mislabeled"], whole["p_mislabeled"])[0, 1] > 0.9


def test_weights_that_step_is_not_told_of_are_noticed_and_stop_no_training(learned, caplog):
    model, optimizer, monitor, (points, given, _) = learned.resume()
    learn(model, optimizer, monitor, points, given, start=4, stop=5)
    learn(model, optimizer, monitor, points, given, start=5, tell=False)
    assert monitor.counters["visits_refused"] > 0 and "weights=w" in caplog.text
    assert (monitor.weights([0]) <= 1).all()


def test_weights_of_another_shape_raise_on_the_first_step_and_are_refused_later():
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout)
    first, *rest = batches(train_set, count=3)
    with pytest.raises(SgoifError, match=r"shape \(12, 1\) for 12 targets"):
        monitor.step(first[0], first[2], weights=torch.ones(12, 1)).__enter__()
    for part, pixels, labels in (first, *rest):
        with monitor.step(part, labels, weights=None if part is first[0] else torch.ones(len(part), 1)):
            F.cross_entropy(model(pixels), labels).backward()
    assert monitor.counters["visits_refused"] == 24 and "shape (12, 1) for 12 targets" in str(monitor.faults)


@pytest.mark.parametrize("layers", ["auto", ["conv"]])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_scores_are_those_of_the_unweighted_loss(layers, reduction):
    train_set, holdout = data()
    runs = []
    for is_weighted in (False, True):
        model = fresh()
        monitor = watch(model, holdout, layers=layers, reduction=reduction)
        generator = torch.Generator().manual_seed(5)
        for part, pixels, labels in batches(train_set):
            drawn = torch.rand(len(part), generator=generator, dtype=torch.float64) + 0.02
            weights = drawn if is_weighted else torch.ones(len(part), dtype=torch.float64)
            with monitor.step(part, labels, weights=drawn if is_weighted else None):
                total = (weights * F.cross_entropy(model(pixels), labels, reduction="none")).sum()
                (total / weights.sum() if reduction == "mean" else total).backward()
        assert monitor.faults == {}
        runs.append(monitor.close().visits)
    for name, column in runs[0].items():
        np.testing.assert_allclose(runs[1][name], column, rtol=1e-9, atol=1e-12, err_msg=name)
    assert np.abs(runs[0]["harm"]).max() > 0


def test_training_with_weights_of_one_is_that_without_a_monitor():
    train_set, holdout = data()

    def loop(model, step):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for part, pixels, labels in batches(train_set):
            w = torch.ones(len(part))
            with step(part, labels, weights=w):
                ((w * F.cross_entropy(model(pixels), labels, reduction="none")).sum() / w.sum()).backward()
            optimizer.step()
            optimizer.zero_grad()

    monitor, _ = run_twins(GroupNormNet, loop, holdout, planned_steps=1000)
    assert monitor.weights(range(48)).tolist() == [1] * 48


def test_asking_for_weights_leaves_the_training_as_it_is():
    ends = []
    for asks in (False, True):
        model, optimizer, monitor, (points, given, _) = clouds(planned_steps=40)
        for ids in torch.arange(len(given)).split(BATCH):
            for _ in range(2):
                with monitor.step(ids, given[ids]):
                    F.cross_entropy(model(points[ids]), given[ids]).backward()
                optimizer.step()
                optimizer.zero_grad()
                if asks:
                    monitor.weights(ids)
        ends.append((model.state_dict(), torch.get_rng_state(), model.training))
        assert asks == ("weights" in monitor.facts)
    (bare, rng, mode), (asked, asked_rng, asked_mode) = ends
    assert torch.equal(rng, asked_rng) and mode == asked_mode
    assert all(torch.equal(value, asked[name]) for name, value in bare.items())


def test_a_state_carries_the_weights(learned):
    model, optimizer, monitor, (points, given, _) = learned.resume()
    assert learned.kept.min() < 1 and torch.equal(monitor.weights(torch.arange(len(given))), learned.kept)
    told = learn(model, optimizer, monitor, points, given, start=4)
    assert told == learned.told[-len(told) :]
    notes = [[note["step"] for note in facts["weights"]] for facts in (learned.monitor.facts, monitor.close().info)]
    assert notes[0] == sorted(set(notes[0])) and len(notes[0]) == 5 and notes[0][-3:] == notes[1]


def test_weights_need_to_know_how_long_the_training_is():
    *_, monitor, _ = clouds(planned_steps=None)
    with pytest.raises(SgoifError, match="planned_steps"):
        monitor.weights([1, 2])
    with pytest.raises(SgoifError, match="planned_steps"):
        InfluenceSampler(monitor, range(10))


def test_a_monitor_that_is_switched_off_weighs_all_alike(monkeypatch):
    monkeypatch.setenv("SGOIF_DISABLE", "1")
    *_, monitor, _ = clouds()
    assert monitor.weights(torch.arange(3)).tolist() == [1, 1, 1]
    assert sorted(InfluenceSampler(monitor, range(5))) == [0, 1, 2, 3, 4]
    with monitor.step([1], torch.zeros(1), weights=torch.ones(1)):
        pass


def test_a_sampler_draws_by_weight_and_keeps_the_length_of_an_epoch(learned):
    *_, monitor, (_, given, wrong) = clouds()
    sampler, again = (InfluenceSampler(monitor, range(len(given)), seed=1) for _ in range(2))
    first = list(sampler)
    assert len(sampler) == len(first) == len(set(first)) and first == list(again)
    assert list(sampler) != first
    assert list(InfluenceSampler(monitor, range(len(given)), seed=2)) != first

    model, optimizer, monitor, (points, given, wrong) = learned.resume()
    sampler = InfluenceSampler(monitor, range(len(given)), seed=1)
    for ids in torch.tensor(list(sampler)).split(BATCH):
        with monitor.step(ids, given[ids]):
            F.cross_entropy(model(points[ids]), given[ids]).backward()
        optimizer.step()
        optimizer.zero_grad()
    counts = np.bincount(list(sampler), minlength=len(given))
    assert counts.sum() == len(given) and counts[wrong].mean() < 0.85 * counts[~wrong].mean()
    assert monitor.faults == {}


def test_a_sampler_goes_on_in_the_middle_of_an_epoch_by_the_weights_of_its_start(learned):
    model, optimizer, monitor, (points, given, _) = learned.resume()

    def make():
        dataset = TensorDataset(torch.arange(len(given)))
        sampler = InfluenceSampler(monitor, range(len(given)), seed=3)
        return StatefulDataLoader(dataset, batch_size=BATCH, sampler=sampler)

    whole = [batch.tolist() for (batch,) in make()]
    loader = make()
    seen = [batch.tolist() for _, (batch,) in zip(range(4), loader)]
    state = loader.state_dict()
    learn(model, optimizer, monitor, points, given, start=4, stop=6)  # weights are renewed
    resumed = make()
    resumed.load_state_dict(state)
    assert seen + [batch.tolist() for (batch,) in resumed] == whole
    following = [batch.tolist() for (batch,) in resumed]
    assert len(following) == len(whole) and following != whole
