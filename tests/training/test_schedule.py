"""The plan and the governor that keeps its price under a promise."""

import itertools

import pytest

import sgoif
from sgoif.training.clock import Clock, StepKind
from sgoif.training.schedule import Governor


def simulate(bare_s, steps):
    """A loop driven through a governor as the monitor does, with a clock that stands still but for what is spent."""
    host, plans = [0.0], []
    governor = Governor(sgoif.Plan(), max_overhead=0.05, clock=Clock(now=lambda: host[0]))

    def spend(part, seconds):
        with governor.timer.part(part):
            host[0] += seconds

    for step in range(steps):
        kind = governor.open_step(step)
        host[0] += bare_s(step) if callable(bare_s) else bare_s
        spend("scoring", 0.0007 if kind is StepKind.SCORED else 0.0002)
        if governor.plan.is_refresh(step) and step:
            governor.decide(step)
        if governor.plan.is_observe(step):
            spend("curvature", 0.002)
        if governor.plan.is_refresh(step):
            spend("refresh", 0.06)
        governor.close_step(step, kind)
        plans.append(governor.plan)
    return governor, plans


@pytest.mark.parametrize("bare_ms", [21, 35, 50, 200])
@pytest.mark.parametrize("steps", [1000, 3000])
def test_the_promise_holds_over_the_whole_run(bare_ms, steps):
    governor, _ = simulate(bare_ms / 1000, steps)
    assert 0 < governor.overhead <= 0.05


def test_no_more_is_given_up_than_the_promise_asks_for():
    governor, plans = simulate(0.2, 1000)
    assert governor.plan == sgoif.Plan() and not governor.changes
    governor, plans = simulate(0.04, 4000)
    assert plans[150].refresh_every > plans[-1].refresh_every  # the first steps have to be paid for
    assert plans[-1].stride == 1 and governor.overhead > 0.03


def test_a_machine_that_is_slow_for_a_while_does_not_thin_out_the_plan_for_ever():
    _, plans = simulate(lambda step: 0.021 if step < 130 else 0.2, 4000)
    assert plans[130] != sgoif.Plan() and plans[-1] == sgoif.Plan()


def test_where_steps_are_short_scores_come_first():
    governor, plans = simulate(0.004, 2000)
    assert plans[119] == sgoif.Plan()
    changes = [step for step, (one, other) in enumerate(itertools.pairwise(plans)) if one != other]
    assert min(later - sooner for sooner, later in itertools.pairwise(changes)) >= 120
    assert governor.overhead > 0.05


def test_short_steps_stay_short_on_a_machine_that_is_busy_later():
    """Before, a window of longer steps took a small model from every step to one step in 16."""
    _, plans = simulate(lambda step: 0.008 if step < 200 else 0.022, 1000)
    assert plans[-1].stride == 1
