"""A small real training loop that every monitor test drives in its own way."""

import torch
import torch.nn.functional as F
from torch import nn

import sgoif
from tests.cases import images


class GroupNormNet(nn.Module):
    """No coupling between examples, so micro-batches add up exactly."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 6, 3, padding=1), nn.GroupNorm(2, 6)
        self.fc = nn.Linear(6, classes)

    def forward(self, x):
        return self.fc(F.relu(self.norm(self.conv(x))).mean((2, 3)))


def data(num=48, held=24, classes=4, dtype=torch.float64, seed=0):
    pixels, labels = images(batch=num + held, seed=seed, classes=classes)
    labels[num:] = torch.arange(held) % classes
    return (pixels[:num].to(dtype), labels[:num]), (pixels[num:].to(dtype), labels[num:])


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
    return sgoif.watch(model, anchors=holdout, train_size=train_size, **{"plan": PLAN, **settings})
