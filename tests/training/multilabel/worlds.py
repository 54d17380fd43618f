"""A small multi-label world with planted errors, and a loop that trains on it."""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import nn

import sgoif
from sgoif.training.schedule import Plan
from tests.grouped import grouped

PLAN = Plan(refresh_every=5, examples_per_refresh=128)


def data(examples=1_200, held=300, tags=5, seed=0):
    """Inputs, tags as given, which of them are wrong, and a clean hold-out."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(12, tags, generator=generator)
    inputs = torch.randn(examples + held, 12, generator=generator)
    true = ((inputs @ weight + 0.5 * torch.randn(len(inputs), tags, generator=generator)) > 1.5).float()
    rate = torch.where(true[:examples] > 0, 0.08, 0.03)
    wrong = torch.rand(examples, tags, generator=generator) < rate
    given = torch.where(wrong, 1 - true[:examples], true[:examples])
    return inputs[:examples], given, wrong, (inputs[examples:], true[examples:])


def fresh(tags=5):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, tags))


def watch(model, holdout, **settings):
    arguments = {"train_size": 1_200, "task": "multilabel", "trusted": True, "plan": PLAN, **settings}
    return sgoif.watch(model, anchors=holdout, **grouped(arguments))


def train(model, inputs, given, monitor=None, epochs=4, reduction="mean"):
    """Train and return the model; order and weights depend on seeds alone."""
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    generator = torch.Generator().manual_seed(1)
    for _ in range(epochs):
        for ids in torch.randperm(len(inputs), generator=generator).split(60):
            targets = given[ids]
            with nullcontext() if monitor is None else monitor.step(ids, targets):
                losses(model(inputs[ids]), targets, reduction).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model


def losses(logits, targets, reduction):
    known = targets >= 0
    found = F.binary_cross_entropy_with_logits(logits, targets.nan_to_num().clamp(0, 1), reduction="none") * known
    return found.mean() if reduction == "mean" else found.sum()
