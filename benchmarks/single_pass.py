"""A training of one epoch, and what a second look at its examples is worth: ``python -m benchmarks.single_pass``.

Every example is met once, most of them by a model that knows little. The run ranks what it judged as it went; then a
snapshot of the finished model scores the examples again, all of them or those that were not judged, in one pass.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

import sgoif
from benchmarks import data, loops, noise
from benchmarks.metrics import average_precision
from benchmarks.models import ResNet9
from benchmarks.records import append_result, is_recorded
from sgoif.gradients import quiet_eval
from sgoif.snapshot import Snapshot
from sgoif.training.monitor import Monitor

_BATCH = 250
_SIGNALS = ("p_mislabeled", "worst", "probe_margin", "margin")
_LOW_IS_BAD = ("probe_margin", "margin")

Columns = dict[str, NDArray[Any]]


def run_once(setting: str, holdout: str, seed: int, *, split: str, examples: int) -> dict[str, Any]:
    """Train one epoch, watched, take a snapshot, score again."""
    torch.set_num_threads(1)
    parts = data.development(examples) if split == "development" else data.reported(examples, seed)
    given, given_held = noise.apply_to_split(setting, parts, seed)
    is_trusted = holdout == "trusted"
    held = parts.trusted if is_trusted else data.as_given_holdout(parts.held, given_held)
    images = data.normalise(parts.train.pixels, *data.CIFAR10_STATS).contiguous(memory_format=torch.channels_last)
    labels, wrong = torch.from_numpy(given.astype(np.int64)), given != parts.train.labels
    anchors = (data.normalise(held.pixels, *data.CIFAR10_STATS), torch.from_numpy(held.labels))

    clock = _Clock()
    model, monitor, recipe = _train(images, labels, anchors, is_trusted, seed)
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


def _train(
    images: torch.Tensor, labels: torch.Tensor, anchors: Any, is_trusted: bool, seed: int
) -> tuple[torch.nn.Module, Monitor, loops.Recipe]:
    recipe = loops.Recipe(num_epochs=1, batch_size=_BATCH)
    torch.manual_seed(seed)
    model = ResNet9(num_classes=10)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = loops.optimiser(model, recipe)
    scheduler = loops.schedule(optimizer, recipe, len(images))
    steps = recipe.steps_per_epoch(len(images))
    monitor = sgoif.watch(
        model,
        optimizer,
        anchors=anchors,
        train_size=len(images),
        trusted=is_trusted,
        seed=seed,
        method=sgoif.Method(planned_steps=steps),
    )
    assert isinstance(monitor, Monitor), "SGOIF_DISABLE is set"
    model.train()
    for batch in loops.epochs(images, labels, recipe, seed):
        with monitor.step(batch.indices, batch.labels):
            F.cross_entropy(loops.logits(model, batch.images, recipe), batch.labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    return model, monitor, recipe


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


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--setting", nargs="+", default=["pair-20", "worst"])
    parser.add_argument("--holdout", nargs="+", default=["trusted", "given"])
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--split", choices=["development", "reported"], default="reported")
    parser.add_argument("--examples", type=int, default=20_000)
    parser.add_argument("--save", help="a file under benchmarks/results")
    options = parser.parse_args(arguments)
    for seed in map(int, options.seeds.split(",")):
        for setting in options.setting:
            for holdout in options.holdout:
                settings = {"setting": setting, "holdout": holdout, "split": options.split, "epochs": 1}
                settings["examples"] = options.examples
                if options.save and is_recorded(options.save, settings, seed):
                    continue
                found = run_once(setting, holdout, seed, split=options.split, examples=options.examples)
                print(setting, holdout, seed, found, flush=True)
                if options.save:
                    append_result(options.save, {"settings": settings, "seed": seed, **found})


if __name__ == "__main__":
    main()
