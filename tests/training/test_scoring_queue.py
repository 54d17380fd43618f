"""Batches of several steps scored in one call are scored as each would have been in its own step."""

import os
import signal
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sgoif
from sgoif.influence.near_outputs import NearOutputs
from sgoif.records import SIGNALS
from sgoif.training import ending
from sgoif.training import engine as engines
from sgoif.training.scoring_queue import join_masks, split_queue
from tests.grouped import grouped
from tests.training.loops import take_step

INPUTS, BATCH = 12, 16


def watch_ten_classes(**settings):
    """A monitor of a small network of ten classes, and a function that gives batches for it."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(INPUTS, 20), nn.ReLU(), nn.Linear(20, 10))
    generator = torch.Generator().manual_seed(1)
    held = torch.randn(100, INPUTS, generator=generator), torch.arange(100) % 10
    budget = sgoif.Budget(plan=sgoif.Plan(**settings))
    monitor = sgoif.watch(model, anchors=held, train_size=400, trusted=True, budget=budget)
    return monitor, lambda: (torch.randn(BATCH, INPUTS, generator=generator), torch.arange(BATCH) % 10)


@cache
def visits_of(classes, *, queues, micro=1, sizes=(BATCH,), steps=45, **settings):
    """Visits of a training whose batches are queued, or scored in their own steps."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(INPUTS, 20), nn.ReLU(), nn.Linear(20, classes)).double()
    generator = torch.Generator().manual_seed(1)
    held = (
        torch.randn(8 * classes, INPUTS, generator=generator, dtype=torch.float64),
        torch.arange(8 * classes) % classes,
    )
    plan = sgoif.Plan(refresh_every=20, examples_per_refresh=64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings |= {"train_size": 400, "trusted": True, "accumulate": micro, "plan": plan}
    monitor = sgoif.watch(model, optimizer, anchors=held, **grouped(settings))
    monitor.engine._queues = queues
    count = 0
    for step in range(steps):
        for _ in range(micro):
            size = sizes[step % len(sizes)]
            inputs = torch.randn(size, INPUTS, generator=generator, dtype=torch.float64)
            labels = torch.randint(0, classes, (size,), generator=generator)
            with monitor.step(torch.arange(count, count + size), labels):
                (F.cross_entropy(model(inputs), labels) / micro).backward()
            count += size
        optimizer.step()
        optimizer.zero_grad()
    assert monitor.faults == {}
    run = monitor.close()
    order = np.argsort(run.visits["id"], kind="stable")
    return {name: run.visits[name][order] for name in (*SIGNALS, "step", "harm_std")}


@pytest.mark.parametrize(
    ("classes", "options"),
    [
        (5, {}),
        (5, {"micro": 3}),
        (5, {"sizes": (16, 7, 1)}),
        (5, {"weighting": "confidence"}),
        (5, {"gate": "moving-average"}),
        (5, {"gate": "paper"}),
        (5, {"solver": "direct"}),
        (5, {"layers": ("0",)}),
        (70, {}),
    ],
)
def test_queued_batches_are_scored_as_in_their_own_steps(classes, options):
    queued, alone = (visits_of(classes, queues=queues, **options) for queues in (True, False))
    for name in queued:
        np.testing.assert_allclose(queued[name], alone[name], rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("most", [1, 40 * BATCH])
def test_they_are_scored_in_parts_where_there_are_many_logits(most, monkeypatch):
    whole = visits_of(5, queues=True)
    monkeypatch.setattr("sgoif.training.engine._MOST_LOGITS", most)
    parts = visits_of.__wrapped__(5, queues=True)
    for name in whole:
        np.testing.assert_allclose(parts[name], whole[name], rtol=1e-9, atol=1e-12, err_msg=name)


def test_a_part_holds_as_many_batches_as_may_be_scored_together():

    batches = [SimpleNamespace(outputs=torch.zeros(size, 10)) for size in (3, 3, 3, 9, 1)]
    groups = split_queue(batches, 60)
    assert [[len(batch.outputs) for batch in group] for group in groups] == [[3, 3], [3], [9], [1]]


def test_a_batch_that_does_not_fit_the_others_is_scored_apart():
    """A loop may change its precision on the way."""
    monitor, draw = watch_ten_classes()
    for step in range(12):
        inputs, labels = draw()
        with monitor.step(torch.arange(BATCH), labels):
            with torch.autocast("cpu", torch.bfloat16, enabled=step % 3 == 1):
                outputs = monitor.model(inputs)
            F.cross_entropy(outputs.float(), labels).backward()
    assert monitor.faults == {} and monitor.counters["visits"] == 12 * BATCH


def test_what_waits_is_bounded(monkeypatch):
    monkeypatch.setattr("sgoif.training.engine.MOST_QUEUED", 20_000)
    monitor, draw = watch_ten_classes(observe_every=50, refresh_every=100)
    waiting = []
    for _ in range(40):
        take_step(monitor, torch.arange(BATCH), *draw())
        waiting.append(len(monitor.engine._queue))
    assert max(waiting) < 10 and waiting.count(0) > 3
    assert monitor.counters["visits"] == 40 * BATCH


def test_logits_that_the_loop_changes_in_place_do_not_change_their_scores():
    found = []
    for spoils in (False, True):
        monitor, draw = watch_ten_classes()
        for _ in range(8):
            inputs, labels = draw()
            with monitor.step(torch.arange(BATCH), labels):
                outputs = monitor.model(inputs)
                F.cross_entropy(outputs, labels).backward()
            for tensor in (outputs.data, inputs, labels) if spoils else ():
                tensor.zero_()
        found.append(monitor.close().visits)
    for name in SIGNALS:
        np.testing.assert_array_equal(found[0][name], found[1][name])


class Ended(BaseException):
    """Stands for the end of the process."""


def test_a_signal_that_comes_while_batches_are_scored_loses_none(monkeypatch):
    def end(*_):  # as the monitor's own handler does, which ends the process
        if ending._depth == 0:
            raise Ended
        ending._is_due = True

    before = signal.signal(signal.SIGTERM, end)
    try:
        monitor, draw = watch_ten_classes()
        for _ in range(8):
            take_step(monitor, torch.arange(BATCH), *draw())
        take_scores = monitor.engine.take_scores

        def take_and_be_ended():
            found = take_scores()
            os.kill(os.getpid(), signal.SIGTERM)
            return found

        monkeypatch.setattr(monitor.engine, "take_scores", take_and_be_ended)
        with pytest.raises(Ended):
            monitor.flush()
        monkeypatch.undo()
        monitor.flush()
        assert monitor.faults == {} and monitor.counters["visits"] == 8 * BATCH
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("steps", [5, 45])
def test_very_many_outputs_are_scored_by_the_largest_entries_of_their_gradients(steps, monkeypatch):
    """With as many entries as outputs the scores are those of all outputs."""
    exact = visits_of(70, queues=True, steps=steps)
    used = []

    def of(gradients):
        used.append(len(gradients))
        return NearOutputs(*original(gradients, 70))

    original = NearOutputs.of
    monkeypatch.setattr(engines, "ALL_UP_TO", 64)
    monkeypatch.setattr(engines, "NearOutputs", SimpleNamespace(of=of))
    near = visits_of.__wrapped__(70, queues=True, steps=steps)
    assert sum(used) == steps * BATCH
    for name, values in exact.items():
        tolerance = 1e-5 if name.startswith("probe") else 1e-8
        np.testing.assert_allclose(near[name], values, rtol=tolerance, atol=tolerance, err_msg=name)


def test_a_judge_of_very_many_outputs_knows_the_solved_directions(monkeypatch):
    monkeypatch.setattr(engines, "ALL_UP_TO", 64)
    torch.manual_seed(5)
    model = nn.Linear(INPUTS, 70)
    held = torch.randn(560, INPUTS), torch.arange(560) % 70
    monitor = sgoif.watch(model, anchors=held, train_size=400, trusted=True)
    for step in range(3):
        take_step(
            monitor, torch.arange(BATCH) + step * BATCH, torch.randn(BATCH, INPUTS), torch.randint(0, 70, (BATCH,))
        )
    assert monitor.faults == {}
    engine = monitor.engine
    assert engine.solved is None
    expected = engine.curvature.solve(engine.anchors.gradients)[engine.head.name]
    torch.testing.assert_close(engine.judge().directions[2:], expected)


def test_batches_without_a_mask_have_the_value_that_is_meant_for_them():
    bare, masked = (SimpleNamespace(labels=torch.zeros(2), mixed=mask) for mask in (None, torch.tensor([True, False])))
    assert join_masks([bare, masked], "mixed", False).tolist() == [False, False, True, False]
    assert join_masks([bare, masked], "mixed", True).tolist() == [True, True, True, False]
    assert join_masks([bare, bare], "mixed", True) is None
