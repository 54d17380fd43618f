"""A training of one epoch, and what a second look at its examples is worth.

Every example is met once, most of them by a model that knows little. The run ranks what it judged as it went; then a
snapshot of the finished model scores the examples again, all of them or those that were not judged, in one pass.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import data, loops, noise
from benchmarks.experiment import Experiment
from benchmarks.metrics import average_precision
from benchmarks.models import fresh_model
from sgoif.gradients import quiet_eval
from sgoif.snapshot import Snapshot

_BATCH = 250
_SIGNALS = ("p_mislabeled", "worst", "probe_margin", "margin")
_LOW_IS_BAD = ("probe_margin", "margin")

Columns = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One training."""

    setting: str = "pair-20"
    holdout: Literal["trusted", "given"] = "trusted"
    split: Literal["development", "reported"] = "reported"
    epochs: Literal[1] = 1
    examples: int = 20_000
    seed: int = 1


def run_once(setup: Setup) -> dict[str, Any]:
    """Train one epoch, watched, take a snapshot, score again."""
    parts = data.draw(setup.split, setup.examples, setup.seed)
    given, given_held = noise.apply_to_split(setup.setting, parts, setup.seed)
    is_trusted = setup.holdout == "trusted"
    held = parts.trusted if is_trusted else data.as_given_holdout(parts.held, given_held)
    images = data.normalise(parts.train.pixels, *data.CIFAR10_STATS).contiguous(memory_format=torch.channels_last)
    labels, wrong = torch.from_numpy(given.astype(np.int64)), given != parts.train.labels
    anchors = (data.normalise(held.pixels, *data.CIFAR10_STATS), torch.from_numpy(held.labels))

    clock = _Clock()
    recipe, model = loops.Recipe(num_epochs=1, batch_size=_BATCH), fresh_model(setup.seed)
    monitor = loops.watch(model, images, labels, recipe, setup.seed, anchors=anchors, trusted=is_trusted)
    clock.stop("epoch")
    snapshot = monitor.snapshot()
    clock.stop("snapshot")
    again = second_look(model, snapshot, images, labels, recipe)
    clock.stop("second pass")

    run = monitor.close()
    order = np.argsort(run.table["id"])
    online = {name: run.table[name][order] for name in (*_SIGNALS, "confidence") if name in run.table}
    is_judged = np.zeros(len(wrong), bool)
    is_judged[run.table["id"][order]] = online["confidence"] > 0
    return {
        "ap": {
            "online": _ap(_spread(online, run.table["id"][order], len(wrong)), wrong, is_judged),
            "after rescoring what was not judged": {
                "p_mislabeled": _ap_merged(online, again, wrong, is_judged, run.table["id"][order])
            },
            "after rescoring all": _ap(again, wrong, np.ones(len(wrong), bool)),
        },
        "share judged online": float(is_judged.mean()),
        "seconds": clock.wall_s,
        "cpu seconds": clock.cpu_s,
        "second pass over epoch": (clock.cpu_s["snapshot"] + clock.cpu_s["second pass"]) / clock.cpu_s["epoch"],
        "errors": {"true": int(wrong.sum()), "expected": float(np.nansum(again["p_mislabeled"]))},
        "faults": run.info["counters"]["faults"],
    }


class _Clock:
    """Seconds of each stage; of CPU time besides, which a busy machine does not change."""

    def __init__(self) -> None:
        self.wall_s: dict[str, float] = {}
        self.cpu_s: dict[str, float] = {}
        self._last = time.perf_counter(), time.process_time()

    def stop(self, stage: str) -> None:
        now = time.perf_counter(), time.process_time()
        self.wall_s[stage], self.cpu_s[stage] = now[0] - self._last[0], now[1] - self._last[1]
        self._last = now


def second_look(
    model: torch.nn.Module, snapshot: Snapshot, images: torch.Tensor, labels: torch.Tensor, recipe: loops.Recipe
) -> Columns:
    """Score all examples by the snapshot in one forward pass, probabilities adapted to them."""
    seen: list[torch.Tensor] = []
    handle = model.get_submodule(snapshot.about.head).register_forward_hook(lambda _, args, __: seen.append(args[0]))
    parts = []
    with quiet_eval(model), torch.inference_mode():
        for rows in torch.arange(len(images)).split(_BATCH):
            seen.clear()
            logits = loops.logits(model, images[rows], recipe)
            parts.append(snapshot.signals(seen[0], logits, labels[rows]))
    handle.remove()
    signals = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return snapshot.adapted(signals, labels.numpy()).judged(signals, labels.numpy())


def _spread(columns: Columns, ids: NDArray[np.int64], count: int) -> Columns:
    """Columns by example; those that were never met are NaN."""
    found: Columns = {name: np.full(count, np.nan) for name in columns}
    for name, column in columns.items():
        found[name][ids] = column
    return found


def _ap(columns: Columns, wrong: NDArray[np.bool_], known: NDArray[np.bool_]) -> dict[str, float]:
    """AP in % of each signal; what was not judged comes last."""
    found = {}
    for name in _SIGNALS:
        if name in columns:
            values = columns[name].astype(np.float64) * (-1 if name in _LOW_IS_BAD else 1)
            known_values = known & np.isfinite(values)
            lowest = values[known_values].min() - 1 if known_values.any() else 0.0
            found[name] = 100 * average_precision(np.where(known_values, values, lowest), wrong)
    return found


def _ap_merged(
    online: Columns, again: Columns, wrong: NDArray[np.bool_], is_judged: NDArray[np.bool_], ids: NDArray[np.int64]
) -> float | None:
    p = again["p_mislabeled"].copy()
    before = _spread({"p": online["p_mislabeled"]}, ids, len(p))["p"]
    kept = is_judged & np.isfinite(before)
    p[kept] = before[kept]
    return None if np.isnan(p).all() else 100 * average_precision(np.nan_to_num(p, nan=-1.0), wrong)


EXPERIMENT = Experiment(
    name="single_pass",
    settings=Setup,
    run=run_once,
    full={"setting": ("pair-20", "worst"), "holdout": ("trusted", "given"), "seed": (1, 2, 3)},
    small={"split": "development", "examples": 800, "seed": 0},
    describe=lambda row: f"{row['ap']}, judged online {row['share judged online']:.3f}",
)
