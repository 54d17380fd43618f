"""What a watched step would wait for on an accelerator, shown without one: nothing, but at refreshes and flushes."""

import sys
from collections import Counter, defaultdict
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import sgoif
from sgoif.devices import send
from sgoif.influence.stability import GateMode
from sgoif.linalg import factor
from sgoif.training import engine as engines
from tests.declared_device import DEVICE, DeclaredDevice
from tests.training.loops import GroupNormNet

PLAN = sgoif.Plan(refresh_every=4, examples_per_refresh=32, observe_every=2, early_steps=0)
Method = sgoif.Method
SOLVERS = [Method(solver=name) for name in ("direct", "neumann", "cg")]
GATES = [Method(gate=mode, planned_steps=100) for mode in get_args(GateMode)]
CURVATURES = [Method(curvature=name) for name in ("diagonal", "fisher", "identity", "lowrank")]
FEW = [*SOLVERS, *GATES, *CURVATURES, Method(layers=["conv"], weighting="confidence")]
MANY = [Method(), Method(solver="direct"), Method(gate="paper", planned_steps=100)]


class Loop:
    """A training loop on some device; ``waits`` are those of its steps, by what the plan does in them."""

    def __init__(self, device, classes=10, *, is_broken=False, task="classification", plan=PLAN, **settings):
        generator = torch.Generator().manual_seed(0)
        labels, held = (torch.arange(count) % classes for count in (96, 6 * classes))
        self.loss = F.cross_entropy
        if task == "multilabel":
            labels, held = (F.one_hot(part, classes).float() for part in (labels, held))
            self.loss = F.binary_cross_entropy_with_logits
        pixels, held_pixels = (torch.randn(len(part), 3, 8, 8, generator=generator) for part in (labels, held))
        if is_broken:
            held_pixels[3::7] = float("nan")
        torch.manual_seed(0)
        with device:
            self.model = GroupNormNet(classes)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.pixels, self.labels = pixels.to(device), labels.to(device)
        self.plan, self.waits = plan, defaultdict(Counter)
        settings |= {"task": task, "budget": sgoif.Budget(plan=plan)}
        self.monitor = sgoif.watch(self.model, self.optimizer, anchors=(held_pixels, held), train_size=960, **settings)

    def run(self, device=None):
        for step in range(7):
            part = slice(16 * (step % 6), 16 * (step % 6) + 16)
            inputs, labels = self.pixels[part], self.labels[part]
            with self.monitor.step(range(part.start, part.stop), labels):
                self.loss(self.model(inputs), labels).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            if device is not None:
                self.waits[self._kind(step)] += device.take_waits()
        assert self.monitor.faults == {}
        return self

    def _kind(self, step):
        if step == 0:
            return "first"
        return "refresh" if self.plan.is_refresh(step) else "observe" if self.plan.is_observe(step) else "plain"


def run_declared(*args, **settings):
    """Train on the declared device, over two refreshes; the waits, with those of a flush at the end."""
    with DeclaredDevice() as device:
        loop = Loop(DEVICE, *args, **settings)
        device.take_waits()
        waits = loop.run(device=device).waits
        loop.monitor.flush()
        waits["flush"] = device.take_waits()
        assert loop.monitor.faults == {}
    return waits


# The device itself: it must see what an accelerator is waited for, and nothing else.

WAITS = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool((x > 0).any()),
    "host": lambda x: x.cpu(),
    "list": lambda x: x.tolist(),
    "later": lambda x: x.to("cpu", non_blocking=True),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "assigned mask": lambda x: x.index_put_((x > 0,), x.new_zeros(())),
    "masked_select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: x.unique(),
    "equal": lambda x: torch.equal(x, x),
    "repeat": lambda x: torch.repeat_interleave(x.long()),
    "bincount": lambda x: x.long().bincount(),
    "made on the host": lambda x: torch.tensor([1.0, 2.0], device=x.device),
    "sent and waited for": lambda x: torch.ones(3).to(x.device),
    "copied in": lambda x: x.copy_(torch.ones(4)),
    "indices on the host": lambda x: x[torch.tensor([0, 1])],
    "eigenvalues": lambda x: torch.linalg.eigh(x[:, None] * x),
    "solved": lambda x: torch.linalg.solve(torch.diag(x), x),
}


@pytest.mark.parametrize("name", WAITS)
def test_the_device_notes_what_an_accelerator_is_waited_for(name):
    with DeclaredDevice() as device:
        x = torch.ones(4, device=DEVICE)
        WAITS[name](x)
        assert device.take_waits().total() == 1
        x[x.long()].add_(2).sum().mul(torch.tensor(3.0))  # a number on the host travels with the launch
        torch.where(x > 0, x, send(torch.zeros(4), DEVICE))
        assert not device.take_waits()


def test_the_device_refuses_tensors_of_two_devices():
    with DeclaredDevice():
        x = torch.ones(4, device=DEVICE)
        with pytest.raises(RuntimeError, match="two devices"):
            x + torch.ones(4)
        with pytest.raises(RuntimeError, match="indices on lazy"):
            torch.ones(4)[x > 0]


# Whole watched steps.


@pytest.mark.parametrize(
    ("classes", "method"),
    [*((10, method) for method in FEW), *((100, method) for method in MANY), (300, Method())],
)
def test_only_refreshes_and_flushes_wait(classes, method):
    waits = run_declared(classes, method=method)
    assert not waits["plain"]
    assert not waits["observe"]
    assert 1 <= waits["refresh"].total() <= 35  # most of them in what canaries ask; less where the gate is shut
    (told,) = waits["flush"].values()  # all visits in one transfer
    assert told == 1


@pytest.mark.parametrize("classes", [10, 100])
@pytest.mark.parametrize("kind", ["each is scored at once", "some are passed over", "several tags"])
def test_steps_of_other_kinds_do_not_wait(classes, kind, monkeypatch):
    settings = {}
    if kind == "each is scored at once":
        monkeypatch.setattr(engines, "MOST_QUEUED", 0)
    elif kind == "some are passed over":
        settings["plan"] = replace(PLAN, stride=2)
    else:
        settings["task"] = "multilabel"
    waits = run_declared(classes, **settings)
    assert not waits["plain"] + waits["observe"]


@pytest.mark.parametrize("classes", [10, 100])
def test_a_run_on_the_device_is_that_on_the_cpu(classes):
    """Examples of the hold-out that give no numbers are left out on both."""
    plain = Loop(torch.device("cpu"), classes, is_broken=True).run()
    with DeclaredDevice():
        declared = Loop(DEVICE, classes, is_broken=True).run()
        assert declared.monitor.counters == plain.monitor.counters
        found = declared.monitor.close().visits
    assert plain.monitor.counters["holdout_not_finite"] > 0
    for name, column in plain.monitor.close().visits.items():
        np.testing.assert_array_equal(found[name], column, err_msg=name)


@pytest.mark.parametrize("task", ["classification", "multilabel"])
def test_a_device_without_float64_will_do(task, monkeypatch):
    def narrow(device):
        return torch.float32 if device.type == DEVICE.type else torch.float64

    known = factor.factor_dtype
    for module in list(sys.modules.values()):
        if getattr(module, "factor_dtype", None) is known:
            monkeypatch.setattr(module, "factor_dtype", narrow)  # as it is for MPS
    with DeclaredDevice(has_float64=False):
        with pytest.raises(TypeError, match="float64"):
            torch.ones(2, device=DEVICE).double()
        monitor = Loop(DEVICE, task=task).run().monitor
        monitor.close()
        assert monitor.faults == {}
