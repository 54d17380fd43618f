"""A small real training that every framework repeats: CIFAR-10 pictures, a network, and the plain loop over both."""

from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import sgoif
from benchmarks import data

NUM, HELD, BATCH = 100, 40, 20  # five batches, so that windows of two leave one over
IDS = [f"picture {i}" for i in range(NUM)]
PLAN = sgoif.Plan(refresh_every=4, examples_per_refresh=20, observe_every=2)
SCORES = ("step", "loss", "harm", "worst", "confidence", "harm_std")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(3, 8, 3, stride=2), nn.GroupNorm(2, 8), nn.Linear(8, 10)

    def forward(self, x):
        return self.fc(F.relu(self.norm(self.conv(x))).mean((2, 3)))


def fresh(make=Net):
    torch.manual_seed(0)
    return make()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def pictures():
    """The training pictures and a hold-out, as tensors."""
    images = data.cifar10("train", limit=NUM + HELD)
    pixels = data.normalise(images.pixels[: NUM + HELD], *data.CIFAR10_STATS)
    labels = torch.from_numpy(images.labels[: NUM + HELD])
    return TensorDataset(pixels[:NUM], labels[:NUM]), (pixels[NUM:], labels[NUM:])


def windows(accumulate, size=BATCH):
    """The micro-batches of each optimiser step of an epoch, in the order of the pictures; the last may have fewer."""
    parts = torch.arange(NUM).split(size)
    return [parts[start : start + accumulate] for start in range(0, len(parts), accumulate)]


@cache
def plain_run(epochs, accumulate=1, autocast=None):
    """The plain loop, watched; its visits by step and id, and its weights."""
    return run_windows(epochs * windows(accumulate), accumulate, autocast)


def run_windows(steps, accumulate=1, autocast=None):
    """The same over windows in an order of one's own."""
    (pixels, labels), holdout = pictures()[0].tensors, pictures()[1]
    model = fresh()
    optimizer = sgd(model)
    settings = {"loss": sgoif.Loss(accumulate=accumulate), "budget": sgoif.Budget(plan=PLAN)}
    monitor = sgoif.watch(model, optimizer, anchors=holdout, train_size=NUM, **settings)
    for window in steps:
        for number, part in enumerate(window):
            ids = [IDS[i] for i in part]
            with monitor.step(ids, labels[part], is_last=number + 1 == len(window)):
                with torch.autocast("cpu", autocast, enabled=autocast is not None):
                    loss = F.cross_entropy(model(pixels[part]), labels[part])
                (loss / accumulate).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert monitor.faults == {}
    return in_order(monitor.close().visits), model.state_dict()


def in_order(visits):
    """Scores by step and id."""
    order = np.lexsort((visits["id"], visits["step"]))
    return {name: np.asarray(visits[name])[order] for name in ("id", *SCORES)}


def assert_same_scores(one, two, rtol=0.0):
    """Ask for the same visits with the same scores, to the bit unless a tolerance is given, of the largest score."""
    assert (one["id"] == two["id"]).all()
    for name in SCORES:
        atol = rtol * np.nanmax(np.abs(two[name]))
        np.testing.assert_allclose(one[name], two[name], rtol=0, atol=atol, err_msg=name)
    assert np.abs(one["harm"]).max() > 0


def assert_same_weights(one, two):
    for (key, first), second in zip(one.items(), two.values(), strict=True):
        assert torch.equal(first, second), key
