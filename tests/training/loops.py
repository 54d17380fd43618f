"""A small real training loop that every monitor test drives in its own way."""

from contextlib import nullcontext

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import sgoif
from sgoif.records import VisitFlag
from tests.cases import images
from tests.grouped import grouped


class GroupNormNet(nn.Module):
    """No coupling between examples, so micro-batches add up exactly."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 6, 3, padding=1), nn.GroupNorm(2, 6)
        self.fc = nn.Linear(6, classes)

    def forward(self, x):
        return self.fc(F.relu(self.norm(self.conv(x))).mean((2, 3)))


class TwoParts(nn.Module):
    """A backbone with BatchNorm, and a head."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.fc = nn.Linear(6, classes)

    def forward(self, x):
        return self.fc(self.backbone(x))


def data(num=48, held=24, classes=4, dtype=torch.float64, seed=0, apart=0.0):
    """Noise with labels that mean nothing; ``apart`` gives each class a colour, for a model that is to learn them."""
    pixels, labels = images(batch=num + held, seed=seed, classes=classes)
    labels[num:] = torch.arange(held) % classes
    colours = torch.randn(classes, 3, generator=torch.Generator().manual_seed(1), dtype=pixels.dtype)
    pixels = pixels + apart * colours[labels][:, :, None, None]
    return (pixels[:num].to(dtype), labels[:num]), (pixels[num:].to(dtype), labels[num:])


def fresh(make=GroupNormNet, seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    return make().to(dtype)


PLAN = sgoif.Plan(refresh_every=4, examples_per_refresh=16, observe_every=2)


def train(model, train_set, monitor=None, *, epochs=3, batch=12, loss=F.cross_entropy, accumulate=1, after=None):
    """Plain SGD; ``after(step)`` is called at the end of every optimiser step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    pixels, labels = train_set
    generator = torch.Generator().manual_seed(0)
    step = 0
    for _ in range(epochs):
        for indices in torch.randperm(len(labels), generator=generator).split(batch):
            for part in indices.chunk(accumulate):
                if monitor is None:
                    (loss(model(pixels[part]), labels[part]) / accumulate).backward()
                else:
                    with monitor.step(part, labels[part]):
                        (loss(model(pixels[part]), labels[part]) / accumulate).backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if after is not None:
                after(step)
    return model


def watch(model, holdout, train_size=48, **settings):
    return sgoif.watch(model, anchors=holdout, train_size=train_size, **grouped({"plan": PLAN, **settings}))


def train_watched(*, epochs=3, apart=0.0, **settings):
    """The monitor of a training of the usual model on the usual data."""
    train_set, holdout = data(apart=apart)
    model = fresh()
    monitor = watch(model, holdout, **settings)
    train(model, train_set, monitor, epochs=epochs)
    return monitor


def take_step(monitor, ids, pixels, labels, *, loss=F.cross_entropy, **settings):
    """One step that leaves the weights as they are."""
    with monitor.step(ids, labels, **settings):
        loss(monitor.model(pixels), labels).backward()
    monitor.model.zero_grad()


def arrays(table):
    """The columns of a table; null becomes NaN."""
    return {name: table[name].to_numpy() for name in table.column_names}


def run_twins(make, loop, holdout, *, dtype=torch.float64, **settings):
    """Run ``loop(model, step)`` bare and watched, and ask for the same weights, buffers and random numbers to the bit.

    ``step(ids, targets)`` is the monitor's, or nothing. Returns the monitor and its run, with every score finite.
    """
    ends = []
    for is_watched in (False, True):
        model = fresh(make, dtype=dtype)
        torch.manual_seed(7)
        monitor = watch(model, holdout, **settings) if is_watched else None
        extra = loop(model, monitor.step if monitor else lambda *_, **__: nullcontext())
        ends.append(({**model.state_dict(), **(extra or {})}, torch.get_rng_state()))
    (bare, bare_rng), (watched, watched_rng) = ends
    assert torch.equal(bare_rng, watched_rng)
    assert bare.keys() == watched.keys()
    for key, value in bare.items():
        assert torch.equal(value, watched[key]), key
    assert monitor.faults == {}
    run = monitor.close()
    assert len(run.visits["harm"])
    judged = run.visits["flags"].astype(int) & (VisitFlag.NOT_JUDGED | VisitFlag.NOT_FINITE | VisitFlag.MIXED) == 0
    assert judged.any()
    assert np.isfinite(run.visits["harm"]).all()
    assert np.abs(run.visits["harm"][judged]).max() > 0
    return monitor, run


def make_loop(parts, *, loss=F.cross_entropy, call=None, prepare=None, settings=lambda targets: {}):
    """Plain SGD over ``parts``, each of ids, inputs and targets, as ``run_twins`` asks for a loop.

    Args:
        parts: the batches.
        loss: of outputs and targets.
        call: ``call(model, inputs)`` gives the outputs.
        prepare: what is done with the model first.
        settings: further arguments of ``step`` for these targets.
    """
    parts = list(parts)

    def loop(model, step):
        if prepare is not None:
            prepare(model)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
        for ids, x, targets in parts:
            with step(ids, targets, **settings(targets)):
                loss(model(x) if call is None else call(model, x), targets).backward()
            optimizer.step()
            optimizer.zero_grad()

    return loop


def batches(train_set, *, size=12, count=12, seed=3):
    """Random batches of positions, pixels and labels, the same every time."""
    generator = torch.Generator().manual_seed(seed)
    pixels, labels = train_set
    for _ in range(count):
        part = torch.randperm(len(labels), generator=generator)[:size]
        yield part, pixels[part], labels[part]
