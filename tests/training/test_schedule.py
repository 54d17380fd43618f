"""The plan and the governor that keeps its price under a promise."""

import time

import pytest
import torch
from torch import nn

import sgoif
from sgoif.overhead import BenchLoop
from sgoif.training.clock import Clock, StepKind
from sgoif.training.schedule import Governor
from tests.training.loops import PLAN


def test_the_governor_backs_off_and_says_so():
    governor = Governor(PLAN, max_overhead=0.1, window=10)
    for step in range(40):
        governor.note({"scoring": 0.5}, 1.0)
        governor.decide(step)
    assert governor.plan.refresh_every > PLAN.refresh_every
    assert governor.changes[0]["overhead"] == 1.0
    fixed = Governor(PLAN, fixed=True, window=10)
    for step in range(40):
        fixed.note({"scoring": 0.5}, 1.0)
        fixed.decide(step)
    assert fixed.plan == PLAN
    assert Governor(sgoif.Plan()).overhead == 0.0


def simulate(bare_s, steps, *, max_overhead=0.05, score_s=0.0005, advance_s=0.0002, observe_s=0.002, refresh_s=0.06):
    """A loop driven through a governor as the monitor does, with a clock that stands still but for what is spent."""
    host = [0.0]
    governor = Governor(sgoif.Plan(), max_overhead=max_overhead, clock=Clock(now=lambda: host[0]))
    plans = []

    def spend(part, seconds):
        with governor.timer.part(part):
            host[0] += seconds

    for step in range(steps):
        kind = governor.open_step(step)
        host[0] += bare_s(step) if callable(bare_s) else bare_s
        spend("scoring", advance_s + (score_s if kind is StepKind.SCORED else 0.0))
        if governor.plan.is_refresh(step) and step:
            governor.decide(step)
        if governor.plan.is_observe(step):
            spend("curvature", observe_s)
        if governor.plan.is_refresh(step):
            spend("refresh", refresh_s)
        governor.close_step(step, kind)
        plans.append(governor.plan)
    return governor, plans


@pytest.mark.parametrize("bare_ms", [20, 35, 50, 200])
@pytest.mark.parametrize("steps", [300, 500, 3000])
def test_the_promise_holds_over_the_whole_run(bare_ms, steps):
    governor, _ = simulate(bare_ms / 1000, steps)
    assert 0 < governor.overhead <= 0.05


def test_no_more_is_given_up_than_the_promise_asks_for():
    governor, plans = simulate(0.2, 1000)
    assert governor.plan == sgoif.Plan() and not governor.changes
    governor, plans = simulate(0.04, 4000)
    assert plans[30].refresh_every > plans[-1].refresh_every  # the first steps have to be paid for
    assert plans[-1].stride == 1 and governor.overhead > 0.03


def test_a_machine_that_is_slow_for_a_while_does_not_thin_out_the_plan_for_ever():
    _, plans = simulate(lambda step: 0.004 if step < 100 else 0.2, 4000)
    assert plans[100] != sgoif.Plan() and plans[-1] == sgoif.Plan()


@pytest.mark.slow
@pytest.mark.parametrize(("width", "steps"), [(640, 600), (1024, 400)])
def test_the_promise_holds_beside_a_bare_loop(width, steps):
    """By an independent clock: steps with and without a monitor take turns. They take 20 and 50 ms on an idle core."""
    torch.manual_seed(0)
    hidden = [layer for _ in range(4) for layer in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(192, width), nn.ReLU(), *hidden, nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 10)
    )
    batch, anchors = ((torch.randn(n, 3, 8, 8), torch.arange(n) % 10) for n in (128, 500))
    bare = BenchLoop(model, batch, is_watched=False)
    watched = BenchLoop(model, batch, anchors=anchors, budget=sgoif.Budget(max_overhead=0.05))
    spent = {True: 0.0, False: 0.0}
    watched.monitor.governor.timer.clock.now = lambda: time.process_time() - spent[False]
    for step in range(steps):
        for is_watched in (step % 2 == 0, step % 2 == 1):
            begun = time.process_time()
            (watched if is_watched else bare).step()
            spent[is_watched] += time.process_time() - begun
    watched.check()
    assert watched.monitor.governor.overhead <= 0.05
    assert spent[True] / spent[False] - 1 <= 0.055  # noise of the machine
