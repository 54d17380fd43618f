"""A small training of a language model, which the tests of its monitor drive in their own ways."""

from contextlib import nullcontext

import torch

import sgoif
from sgoif.influence.sequence_sets import pad_items
from tests.language_models import build, sequences

PLAN = sgoif.Plan(refresh_every=3, examples_per_refresh=6, observe_every=2, early_steps=0)
COUNT = 12
ITEMS = sequences(COUNT, 3)
GROUPS = {"math": sequences(7, 20), "code": sequences(5, 21)}


def batch_of(places):
    return pad_items([ITEMS[place] for place in places])


def adam(model, **settings):
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], **{"lr": 1e-2, **settings})


def watch(model, optimizer=None, *, anchors=GROUPS, out=None, **settings):
    budget = sgoif.Budget(**{"plan": PLAN, **settings.pop("budget", {})})
    return sgoif.watch(
        model, optimizer, anchors=anchors, train_size=COUNT, task="sequences", budget=budget,
        out=None if out is None else str(out), **settings,
    )  # fmt: skip


def start(**settings):
    """A GPT-2 with LoRA, its optimiser and its monitor."""
    model = build("gpt2", lora=True)
    optimizer = adam(model)
    return model, optimizer, watch(model, optimizer, **settings)


def train(model, optimizer, monitor=None, steps=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        chosen = torch.randperm(COUNT, generator=generator)[:4]
        take_step(model, monitor, chosen, batch_of(chosen.tolist()))
        optimizer.step()
        optimizer.zero_grad()


def take_step(model, monitor, ids, batch, *, times=1.0, **settings):
    """One forward and backward pass of the model's own loss, times a factor; gives the loss."""
    with nullcontext() if monitor is None else monitor.step(ids, batch["labels"], **settings):
        loss = model(**batch).loss
        (times * loss).backward()
    return loss.detach()
