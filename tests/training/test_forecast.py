"""The forecast: what it says before the first step, beside what is measured after it."""

import gc
import logging
import time

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import sgoif
from sgoif.training import forecast as rules
from sgoif.training.clock import Clock
from sgoif.training.work import Work, count_work
from tests.grouped import grouped
from tests.training.loops import PLAN, data, fresh, train, watch


class SmallCnn(nn.Sequential):
    def __init__(self, width=16, classes=10):
        super().__init__(
            nn.Conv2d(3, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 4 * width, 3, padding=1),
            nn.BatchNorm2d(4 * width),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4 * width, classes),
        )


def random_images(count, classes, size=16):
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, 3, size, size, generator=generator), torch.arange(count) % classes


def run_steps(monitor, model, batch, steps, *, first=0):
    x, y = batch
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step in range(first, first + steps):
        with monitor.step(torch.arange(len(y)) + len(y) * (step % 10), y):
            F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def watched(classes=10, *, held=300, batch=64, model=None, **settings):
    torch.manual_seed(0)
    model = model or SmallCnn(classes=classes)
    settings = {"plan": sgoif.Plan(), "gate": "none", "keep_visits": "none", "trusted": True, **settings}
    holdout = random_images(held, classes)
    return (
        sgoif.watch(model, anchors=holdout, train_size=10 * batch, **grouped(settings)),
        model,
        random_images(batch, classes),
    )


def test_shares_are_within_a_factor_of_three_of_what_is_measured():
    monitor, model, batch = watched(batch_size=64)
    before = monitor.forecast
    monitor.governor.timer.clock = Clock("cpu", time.process_time)  # other programs' time does not count
    run_steps(monitor, model, batch, 41)
    measured = monitor.governor.shares
    assert monitor.counters["faults"] == 0
    predicted = {
        "scoring": before.step_share,
        "curvature": before.curvature_share,
        "refresh": before.refresh_share,
    }
    for name, share in predicted.items():
        assert 1 / 3 < share / measured[name] < 3, (name, share, measured[name])
    assert 1 / 3 < before.total_share / monitor.governor.overhead < 3


def arrays_behind(*roots):
    """Bytes of all tensors and arrays that can be reached, each memory counted once."""
    seen, waiting, memory = set(), list(roots), {}
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, type | nn.Module) or callable(thing):
            continue
        seen.add(id(thing))
        if isinstance(thing, torch.Tensor):
            storage = thing.untyped_storage()
            memory[storage.data_ptr()] = storage.nbytes()
        elif isinstance(thing, np.ndarray):
            memory[thing.ctypes.data if thing.base is None else id(thing.base)] = thing.nbytes
        else:
            waiting.extend(gc.get_referents(thing))
    return sum(memory.values())


@pytest.mark.parametrize(
    ("classes", "held", "trusted"), [(10, 2000, True), (10, 600, False), (100, 400, True), (200, 600, False)]
)
def test_memory_is_within_a_factor_of_two_of_what_is_held(classes, held, trusted):
    plan = sgoif.Plan(refresh_every=3)
    monitor, model, batch = watched(classes, held=held, batch_size=64, plan=plan, trusted=trusted)
    before = monitor.forecast
    holdout = arrays_behind(monitor.engine.holdout)
    run_steps(monitor, model, batch, 30)  # ten refreshes: the canaries remember eight
    layers = arrays_behind(*(layer.parameters for layer in monitor.engine.layers))
    device = arrays_behind(monitor.engine, monitor._visits._waiting) - holdout - layers
    assert 0.5 < before.device_mb * 2**20 / device < 2, (before.device_mb, device / 2**20)
    host = arrays_behind(monitor.recorder, monitor.ledger)
    assert 0.5 < before.host_mb * 2**20 / host < 2, (before.host_mb, host / 2**20)
    assert before.memory_mb == before.device_mb + before.host_mb


def test_memory_of_evidence_grows_with_the_training_set():
    sizes = [watched(batch_size=64)[0].forecast]
    model = SmallCnn()
    large = sgoif.watch(
        model, anchors=random_images(300, 10), train_size=10**6, trusted=True,
        budget=sgoif.Budget(plan=sgoif.Plan(), batch_size=64),
    )  # fmt: skip
    assert large.forecast.host_mb - sizes[0].host_mb == pytest.approx(
        (10**6 - 640) * large.recorder.bytes_per_example / 2**20, rel=1e-6
    )
    assert large.forecast.device_mb == pytest.approx(sizes[0].device_mb)


class Operators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("classes", "held"), [(10, 100), (100, 300)])
def test_the_operators_of_each_part_are_as_many_as_the_forecast_says(classes, held, monkeypatch):
    monitor, model, batch = watched(classes, held=held, plan=PLAN)
    counts = {}

    def counted(name):
        action = getattr(monitor.engine, name)

        def run(*args, **named):
            monitor.engine.directions()  # steps that are due are not part of what is counted
            with Operators() as operators:
                found = action(*args, **named)
            counts[name] = max(counts.get(name, 0), operators.count)
            return found

        return run

    run_steps(monitor, model, batch, 4)
    for name in ("queue", "settle", "measure", "absorb", "refresh"):
        monkeypatch.setattr(monitor.engine, name, counted(name))
    run_steps(monitor, model, batch, 1, first=4)  # refreshes and observes
    assert monitor.counters["faults"] == 0
    for name, count in counts.items():
        expected = getattr(rules, "_OBSERVE" if name == "measure" else f"_{name.upper()}")
        expected /= 2 if name == "absorb" and classes > 64 else 1
        assert 0.6 < expected / count < 1.7, (name, count)
    assert len(counts) == 5


def test_the_plan_tells_its_price_when_printed_and_is_the_same_plan(caplog):
    monitor, model, batch = watched()
    assert monitor.forecast is None
    assert monitor.plan == sgoif.Plan()
    assert "forecast" not in str(monitor.plan)
    with caplog.at_level(logging.INFO, logger="sgoif"):
        run_steps(monitor, model, batch, 2)
    (line,) = [text for text in caplog.messages if text.startswith("plan:")]
    text = str(monitor.plan)
    assert line.splitlines()[:2] == text.splitlines()[:2]
    for word in ("batches of 64", "scoring", "curvature", "refreshes", "together", "memory"):
        assert word in text
    assert monitor.plan == sgoif.Plan()
    assert hash(monitor.plan) == hash(sgoif.Plan())
    assert "forecast" not in str(monitor.governor.state_dict()["plan"])


@pytest.mark.parametrize("keep_visits", ["all", "last", "none"])
def test_visits_that_are_not_kept_take_no_memory(keep_visits, tmp_path):
    for out in (None, str(tmp_path / keep_visits)):
        monitor, *_ = watched(keep_visits=keep_visits, out=out, batch_size=64)
        assert (monitor.forecast.visits_mb == 0) == (keep_visits == "none")
        assert ("MB of visits" in str(monitor.plan)) == (keep_visits != "none")


def test_a_rarer_plan_costs_less():
    shares = []
    for plan in (sgoif.Plan(), sgoif.Plan(refresh_every=80), sgoif.Plan(observe_every=10), sgoif.Plan(stride=2)):
        found = watched(plan=plan, batch_size=64)[0].forecast
        shares.append((found.step_share, found.curvature_share, found.refresh_share))
    base, rarer_refresh, rarer_curvature, stride = shares
    assert rarer_refresh[2] < 0.85 * base[2]  # recording visits costs the same
    assert 0.5 * base[1] < rarer_curvature[1] < base[1]  # absorbing costs the same
    assert 0.5 * base[0] < stride[0] < 0.9 * base[0]


def test_a_model_that_is_not_counted_has_no_shares_but_memory(monkeypatch):
    monitor, _, _ = watched(batch_size=64)
    monitor._forecaster.model = None
    found = monitor.forecast
    assert np.isnan(found.total_share)
    assert found.memory_mb > 0
    assert "nan" in str(found)


def test_counting_a_pass_gives_torchs_own_operations_and_changes_nothing():
    model, x = SmallCnn().eval(), random_images(4, 10)[0]
    with FlopCounterMode(display=False) as reference:
        expected = model(x)
    found, work = count_work(lambda: model(x))
    assert torch.equal(found, expected)
    assert work.flops == reference.get_total_flops()
    assert work.bytes > x.nbytes
    assert work.launches >= 9


def test_what_cannot_be_counted_is_run_all_the_same():
    calls = []

    def awkward():
        calls.append(torch.utils._python_dispatch._get_current_dispatch_mode() is not None)
        if calls[-1]:
            raise RuntimeError("not under a mode")
        return 5

    assert count_work(awkward) == (5, None)
    assert calls == [True, False]


def test_work_adds_and_scales():
    assert 2 * Work(1.0, 2.0, 3.0) + Work(launches=1.0) == Work(2.0, 4.0, 7.0)


def test_a_named_head_is_forecast_too_and_its_batch_may_change():
    train_set, holdout = data()
    model = fresh()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    monitor = watch(model, holdout, head="fc", batch_size=1000)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert monitor.forecast.batch_size == 1000
    train(model, train_set, monitor, epochs=1)
    assert monitor.forecast.batch_size == 12


@pytest.mark.parametrize("features", [300, 600])
def test_absorbing_curvature_moves_the_bytes_that_are_forecast(features):
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, features), nn.ReLU(), nn.Linear(features, 10))
    monitor, model, batch = watched(model=model)
    engine, counted = monitor.engine, []

    def counting(run):
        def counted_run(*arguments):
            engine.directions()  # steps that are due are not part of what is counted
            found, work = count_work(lambda: run(*arguments))
            counted.append(work)
            return found

        return counted_run

    run_steps(monitor, model, batch, 1)
    engine.measure, engine.absorb = counting(engine.measure), counting(engine.absorb)
    run_steps(monitor, model, batch, 20, first=1)
    assert len(counted) == 5  # four observations, and the refresh at step 20
    measured = sum(counted[1:], start=counted[0])
    plan = sgoif.Plan(refresh_every=20)
    forecast = 20 * rules._curvature(plan, rules.Sizes.of(engine, monitor.recorder, None), 64)
    assert 2 / 3 < forecast.bytes / measured.bytes < 3 / 2
    assert 2 / 3 < forecast.launches / rules._AROUND / measured.launches < 3 / 2
