"""A training of its own process, to be killed at any moment. Imported by that process, so it imports little."""

from __future__ import annotations

from typing import Any

import torch

import sgoif
from tests.grouped import grouped
from tests.training.twins import PLAN, TRAIN_SIZE, Batch, Twins, make_data

__all__ = ["train_until_killed"]


def train_until_killed(connection: Any, out: str, settings: dict[str, Any]) -> None:
    """Train for ever, and tell after every step how many rows the monitor was given."""
    torch.set_num_threads(1)
    twins = Twins("mlp", "classification")
    side, inputs = twins.watched, make_data(24, seed=2)
    side.monitor = sgoif.watch(
        side.model,
        side.optimizer,
        anchors=inputs,
        train_size=TRAIN_SIZE,
        out=out,
        **grouped({"plan": PLAN, **settings}),
    )
    connection.send(0)
    seed = 0
    while True:
        twins._run(side, Batch(seed=seed))
        connection.send(side.offered)
        seed += 1
