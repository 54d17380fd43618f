"""Clouds with planted wrong labels, and watched trainings on them."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import sgoif


def world(num=1200, held=300, classes=4, rate=0.2, holdout_rate=0.0, seed=0):
    """Overlapping clouds in the plane; wrong labels are any other class."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randint(0, classes, (num + held,), generator=generator)
    angle = 2 * torch.pi * truth / classes
    points = torch.stack([angle.cos(), angle.sin()], 1) * 2.5 + torch.randn(num + held, 2, generator=generator)
    flips = torch.rand(num + held, generator=generator) < torch.where(
        torch.arange(num + held) < num, rate, holdout_rate
    )
    given = torch.where(flips, (truth + torch.randint(1, classes, (num + held,), generator=generator)) % classes, truth)
    return (points[:num], given[:num], flips[:num].numpy()), (points[num:], given[num:], flips[num:].numpy())


def many_clouds(num=4000, held=800, classes=80, rate=0.2, dim=16, seed=0):
    """Clouds of 80 classes around random centres; wrong labels go to the next class."""
    generator = torch.Generator().manual_seed(seed)
    centres = 1.6 * torch.randn(classes, dim, generator=generator)
    truth = torch.arange(num + held) % classes
    points = centres[truth] + torch.randn(num + held, dim, generator=generator)
    flips = (torch.rand(num + held, generator=generator) < rate) & (torch.arange(num + held) < num)
    given = torch.where(flips, (truth + 1) % classes, truth)
    return (points[:num], given[:num], flips[:num].numpy()), (points[num:], given[num:], flips[num:].numpy())


def watched_run(train, holdout, *, trusted, epochs=12):
    torch.manual_seed(0)
    points, given, _ = train
    model = nn.Sequential(nn.Linear(points.shape[1], 32), nn.ReLU(), nn.Linear(32, int(given.max()) + 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    plan = sgoif.Plan(refresh_every=10, examples_per_refresh=256)
    monitor = sgoif.watch(
        model, optimizer, anchors=holdout[:2], train_size=len(given), trusted=trusted, budget=sgoif.Budget(plan=plan)
    )
    generator = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for indices in torch.randperm(len(given), generator=generator).split(50):
            with monitor.step(indices, given[indices]):
                F.cross_entropy(model(points[indices]), given[indices]).backward()
            optimizer.step()
            optimizer.zero_grad()
    return monitor, monitor.close()


def in_order(run, name="p_mislabeled"):
    """A column by id."""
    return run.table[name][np.argsort(run.table["id"])]
