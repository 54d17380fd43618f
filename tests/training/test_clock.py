"""Time that is spent in the monitor, and the pairs of steps that show it where the device runs behind the host."""

import numpy as np
import pytest
import torch

import sgoif
from sgoif.training.clock import Clock, PairedProbe, StepKind, StepTimer
from sgoif.training.schedule import Governor
from tests.training.loops import data, fresh, make_loop, watch


class LateDevice(Clock):
    """A device that is told what to do in no time, and does it later; one who waits for it waits that long."""

    def __init__(self):
        self.host = self.done = 0.0
        self.num_waits = 0
        super().__init__("cpu", now=lambda: self.host)

    is_exact = False

    def launch(self, seconds):
        self.host += 1e-6
        self.done = max(self.done, self.host) + seconds

    def synchronise(self):
        self.num_waits += 1
        self.host = max(self.host, self.done)


def simulate(plan, steps, *, score_s=0.2, observe_s=0.5, refresh_s=4.0, advance_s=0.05, fixed=True, **settings):
    """A loop whose bare step takes one second of the device, driven through a governor as the monitor does."""
    device = LateDevice()
    probe = PairedProbe(device, first=10, every=50)
    governor = Governor(plan, clock=device, probe=probe, fixed=fixed, **settings)
    kinds, waits = [], []
    for step in range(steps):
        before = device.num_waits
        kind = governor.open_step(step)
        device.launch(1.0)
        if kind is not StepKind.BARE:
            with governor.timer.part("scoring"):
                device.launch(advance_s + (score_s if kind is StepKind.SCORED else 0.0))
                if plan.is_refresh(step):
                    with governor.timer.part("curvature"):  # of all batches observed since the last time
                        device.launch(observe_s * plan.refresh_every / plan.observe_every)
                    with governor.timer.part("refresh"):
                        device.launch(refresh_s)
            if plan.is_refresh(step):
                governor.decide(step)
        governor.close_step(step, kind)
        kinds.append(kind)
        waits.append(device.num_waits - before)
    return governor, kinds, waits


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (sgoif.Plan(refresh_every=20, observe_every=5), {"scoring": 0.25, "curvature": 0.1, "refresh": 0.2}),
        (sgoif.Plan(refresh_every=8, observe_every=1), {"scoring": 0.25, "curvature": 0.5, "refresh": 0.5}),
        (
            sgoif.Plan(refresh_every=20, observe_every=4, stride=2),
            {"scoring": 0.15, "curvature": 0.125, "refresh": 0.2},
        ),
    ],
    ids=["default", "often", "stride"],
)
def test_pairs_of_steps_find_what_the_host_cannot_see(plan, expected):
    governor, _, _ = simulate(plan, 100)
    assert governor.shares == pytest.approx(expected, rel=1e-3)
    assert governor.overhead == pytest.approx(sum(expected.values()), rel=1e-3)
    assert governor.plan == plan  # which is fixed


def test_a_window_gives_up_four_steps_and_waits_in_no_other():
    governor, kinds, waits = simulate(sgoif.Plan(refresh_every=20, observe_every=5), 60)
    bare = [step for step, kind in enumerate(kinds) if kind is StepKind.BARE]
    assert len(bare) == 4
    assert set(bare) <= set(range(11, 22))
    assert len(governor.probe.readings) == 1
    waited = [step for step, count in enumerate(waits) if count]
    assert min(waited) == 10
    assert max(waited) <= 20  # the window, and the first refresh after it
    governor, kinds, _ = simulate(sgoif.Plan(refresh_every=20, observe_every=5), 260)
    assert len(governor.probe.readings) == 5
    assert sum(kind is StepKind.BARE for kind in kinds) == 20


def test_no_step_that_refreshes_is_bare():
    plan = sgoif.Plan(refresh_every=3, observe_every=2)
    governor, kinds, _ = simulate(plan, 60)
    assert governor.probe.readings
    assert not any(plan.is_refresh(step) for step, kind in enumerate(kinds) if kind is StepKind.BARE)
    governor, kinds, waits = simulate(sgoif.Plan(refresh_every=1, observe_every=1), 60)
    assert StepKind.BARE not in kinds and not governor.probe.readings
    assert sum(count > 0 for count in waits) == 3 * 8 + 2 and waits[-1] == 0  # it is not waited for long


def test_the_governor_backs_off_once_for_every_reading_that_breaks_the_promise():
    governor, _, _ = simulate(sgoif.Plan(refresh_every=20, observe_every=5), 260, fixed=False, max_overhead=0.1)
    assert len(governor.changes) == len(governor.probe.readings) > 1
    assert governor.plan.refresh_every > 20
    content, _, _ = simulate(sgoif.Plan(refresh_every=20, observe_every=5), 260, fixed=False, max_overhead=0.9)
    assert not content.changes


def test_a_resumed_governor_remembers_its_readings():
    governor, _, _ = simulate(sgoif.Plan(refresh_every=20, observe_every=5), 100)
    again = Governor(sgoif.Plan(), probe=PairedProbe(LateDevice()))
    again.load_state_dict(governor.state_dict())
    assert again.shares == governor.shares
    assert again.probe.next_window == governor.probe.next_window
    assert again.plan == governor.plan


def test_a_block_within_a_block_is_counted_once():
    device = LateDevice()
    timer = StepTimer(device)
    timer.take()
    with timer.part("scoring"):
        device.host += 1.0
        with timer.part("curvature"):
            device.host += 2.0
        with timer.part("refresh"):
            device.host += 4.0
        device.host += 1.0
    device.host += 8.0
    parts, total = timer.take()
    assert parts == {"scoring": 2.0, "curvature": 2.0, "refresh": 4.0}
    assert total == 16.0


def test_a_real_loop_with_pairs_trains_the_same_weights_and_counts_what_it_gave_up():
    train_set, holdout = data()
    loop, weights = make_loop([(torch.arange(48), *train_set)] * 40), []
    for num_windows in (0, 2):
        model = fresh()
        plan = sgoif.Plan(refresh_every=6, examples_per_refresh=16, observe_every=2)
        monitor = watch(model, holdout, plan=plan)
        if num_windows:
            clock = Clock("cpu")
            monitor.governor = Governor(plan, fixed=True, clock=clock, probe=PairedProbe(clock, first=5, every=20))
        loop(model, monitor.step)
        weights.append(model.state_dict())
        counters = monitor.counters
        assert counters["faults"] == 0
        assert counters["visits_given_up"] == 4 * 48 * num_windows
        assert counters["visits"] == 40 * 48 - counters["visits_given_up"]
        assert counters["steps"] == 40
        assert monitor.engine.gate.steps == 40 - 4 * num_windows  # in a bare step not even the directions move
    assert len(monitor.governor.probe.readings) == 2
    assert all(np.isfinite(list(reading.shares.values())).all() for reading in monitor.governor.probe.readings)
    assert all(torch.equal(one, two) for one, two in zip(weights[0].values(), weights[1].values(), strict=True))
