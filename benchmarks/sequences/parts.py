"""Which part of a sequence's score agrees with retraining: K-FAC in the last block, with one part changed at a time.

All monitors watch the same training. The retrainings are those of :mod:`benchmarks.sequences.retraining`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import sgoif
from benchmarks.experiment import Experiment
from benchmarks.sequences.faithfulness import describe, describe_bank, judge
from benchmarks.sequences.retraining import load_texts, make_model, make_optimizer, members_of, read_bank, train
from benchmarks.sequences.scores import Settings, query_places, read_effects

_ADDITIVE = {"damping_mode": "additive", "relative_damping": 0.1}
PARTS: dict[str, dict[str, Any]] = {
    "default": {},
    "latest gradients": {"is_latest": True},
    "last epoch": {"is_late": True},
    "additive damping": {"settings": _ADDITIVE},
    "latest gradients, last epoch, additive damping": {"is_latest": True, "is_late": True, "settings": _ADDITIVE},
}


@dataclass(frozen=True)
class Watched:
    """A monitor that judges the steps from ``first`` on, and may forget earlier gradients of the queries."""

    monitor: Any
    first: int
    is_latest: bool
    steps: list[int]

    def step(self, ids: Any, targets: Any) -> AbstractContextManager[Any]:
        self.steps.append(len(self.steps))
        if len(self.steps) <= self.first:
            return nullcontext()
        if self.is_latest:  # the average then holds the next look alone
            gradients = self.monitor.engine._gradients
            for part in (*gradients._sums.values(), gradients._weight):
                part.zero_()
        watched: AbstractContextManager[Any] = self.monitor.step(ids, targets)
        return watched


def run(settings: Settings) -> Iterator[dict[str, Any]]:
    """Train once on all sequences, watched by all variants."""
    recipe, texts = settings.recipe, load_texts(settings.recipe)
    model = make_model(recipe, texts, settings.seed)
    optimizer = make_optimizer(recipe, model)
    places = query_places(settings)
    groups = {
        f"{number:03d}": [{"input_ids": row, "labels": row} for row in rows]
        for number, rows in enumerate(texts.held[torch.from_numpy(places)])
    }
    plan = sgoif.Plan(
        refresh_every=settings.refresh, examples_per_refresh=places.size, observe_every=4, early_steps=0
    )  # fmt: skip
    steps = recipe.epochs * -(-recipe.sequences // recipe.batch)
    watched: dict[str, Watched] = {}
    for name, part in PARTS.items():
        monitor = sgoif.watch(
            model, optimizer, anchors=groups, train_size=len(texts.train), task="sequences", seed=settings.seed,
            budget=sgoif.Budget(plan=plan), method=sgoif.Method(curvature_settings=part.get("settings")),
        )  # fmt: skip
        # one step before the last epoch: the first step of a monitor is not judged
        first = steps - steps // recipe.epochs - 1 if part.get("is_late") else 0
        watched[name] = Watched(monitor, first, part.get("is_latest", False), [])
    everyone = np.ones(len(texts.train), dtype=bool)
    train(
        recipe, texts.train, everyone, settings.seed,
        model=model, optimizer=optimizer, monitors=tuple(watched.values()),
    )  # fmt: skip
    losses = read_bank(recipe, settings.halves, settings.seeds)[:, :, places].mean(3)
    members = members_of(recipe, settings.halves)
    for name, each in watched.items():
        found = each.monitor.close()
        assert found.info["counters"]["faults"] == 0, found.info["faults"]
        scores = read_effects(found, len(texts.train), list(groups))["harm"]
        yield {"method": name, **judge(members, losses, scores), **describe_bank(losses)}


EXPERIMENT = Experiment(
    name="sequence_parts",
    settings=Settings,
    run=run,
    full={"seeds": [(0,)]},
    small={
        "sequences": 16, "held": 8, "length": 16, "width": 32, "depth": 1, "epochs": 2, "queries": 2, "halves": 4,
        "refresh": 2,
    },
    needs=("transformers",),
    describe=describe,
)  # fmt: skip
