"""Curvature and damping on frozen features: ``python -m benchmarks.frozen_backends``.

A linear head learns the noisy labels of frozen pretrained features. With every backend and damping it is watched while
it trains, or audited when it has. The head is the same every time, since nothing that watches may change it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

import sgoif
from benchmarks.frozen_noise import SETTINGS, NoisyFeatures, noisy_features
from benchmarks.metrics import detection_report
from benchmarks.records import append_result, is_recorded
from sgoif.scan.standardise import standardise
from sgoif.training.monitor import Monitor
from sgoif.training.schedule import Plan

SIGNALS = ("harm", "worst", "p_mislabeled")
WAYS = ("audited", "watched")
EPOCHS, BATCH, RATE = 3, 250, 1e-3  # as `sgoif.scan.frozen` trains 1,280 features

# A number is relative to the mean eigenvalue, for K-FAC that of each factor; an absolute one is added as it is, its
# root to each factor.
BACKENDS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "identity": ("identity", {}),
    "diagonal, 0.1": ("diagonal", {}),
    "diagonal, 10": ("diagonal", {"relative_damping": 10.0}),
    "kfac, 0.1": ("kfac", {}),
    "kfac, 1": ("kfac", {"relative_damping": 1.0}),
    "kfac, 10": ("kfac", {"relative_damping": 10.0}),
    "kfac, 30": ("kfac", {"relative_damping": 30.0}),
    "kfac, 100": ("kfac", {"relative_damping": 100.0}),
    "kfac, absolute 100": ("kfac", {"damping": 100.0}),
    "kfac, additive 10": ("kfac", {"damping_mode": "additive", "relative_damping": 10.0}),
    "lowrank, 0.1": ("lowrank", {}),
}


@dataclass(frozen=True, slots=True)
class Case:
    """Features to learn from and to hold out, and which of the labels to learn are wrong."""

    inputs: Tensor  # [N, 1280]
    labels: Tensor
    wrong: NDArray[np.bool_]
    anchors: tuple[Tensor, Tensor]
    is_trusted: bool
    seed: int

    @classmethod
    def of(cls, found: NoisyFeatures, *, features: str, is_trusted: bool, seed: int) -> Case:
        """Standardise the features, or leave them raw, and set the hold-out apart."""
        kept, held = (torch.from_numpy(np.flatnonzero(which)) for which in (~found.held, found.held))
        inputs = (
            standardise(found.rows, ~found.held).inputs if features == "standardised" else torch.from_numpy(found.rows)
        )
        labels = torch.from_numpy(found.given)
        wrong = (found.given != found.clean)[~found.held]
        return cls(inputs[kept], labels[kept], wrong, (inputs[held], labels[held]), is_trusted, seed)


def examine(case: Case, backend: str, way: str) -> dict[str, Any]:
    """Watch a head learn, or audit it when it has; returns what is found, in percent."""
    torch.set_num_threads(1)
    curvature, settings = BACKENDS[backend]
    common: dict[str, Any] = {
        "anchors": case.anchors,
        "trusted": case.is_trusted,
        "method": sgoif.Method(curvature=curvature, curvature_settings=settings),
        "seed": case.seed,
    }
    model = _head(case.inputs.shape[1])
    optimizer = torch.optim.Adam(model.parameters(), RATE, weight_decay=1e-4)
    if way == "watched":
        monitor = sgoif.watch(model, optimizer, train_size=len(case.labels), budget=sgoif.Budget(plan=Plan()), **common)
        assert isinstance(monitor, Monitor), "SGOIF_DISABLE is set"
        _learn(model, optimizer, case, monitor.step)
        run = monitor.close()
        assert run.info["counters"]["faults"] == 0, run.info["faults"]
    else:
        _learn(model, optimizer, case)
        run = sgoif.audit(model, (case.inputs, case.labels), **common)
    order = np.argsort(run.table["id"])
    scores = {name: np.nan_to_num(run.table[name][order]) for name in SIGNALS if name in run.table}
    report = {name: detection_report(values, case.wrong) for name, values in scores.items()}
    return {"report": report, "canaries": canary_ap(run)}


def canary_ap(run: sgoif.Run) -> dict[str, float]:
    """How well ``harm`` and ``worst`` find the hold-out's own flipped labels, known without any true label.

    Each canary was scored against the other fold's directions. Only factored K-FAC and the identity have them; other
    backends are judged by the identity's here.
    """
    from sklearn.metrics import average_precision_score

    table = run.sql("select is_flip, weight, harm_solved, worst_solved from canaries").to_pydict()
    scored = {name: (table["is_flip"], table[f"{name}_solved"]) for name in ("harm", "worst")}
    return {name: 100 * float(average_precision_score(*x, sample_weight=table["weight"])) for name, x in scored.items()}


def _head(num_features: int) -> nn.Sequential:
    head = nn.Linear(num_features, 10)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return nn.Sequential(head)


def _learn(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    case: Case,
    step: Callable[[Tensor, Tensor], AbstractContextManager[Any]] = lambda ids, labels: nullcontext(),
) -> None:
    for batch in _batches(len(case.labels), case.seed):
        optimizer.zero_grad()
        with step(batch, case.labels[batch]):
            F.cross_entropy(model(case.inputs[batch]), case.labels[batch]).backward()
        optimizer.step()


def _batches(count: int, seed: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(EPOCHS):
        yield from torch.randperm(count, generator=generator).split(BATCH)


def show(settings: Mapping[str, Any], seed: int, found: Mapping[str, Any]) -> None:
    """Print one result."""
    cells = [f"{name} {row['ap']:5.1f} ({row['p@1%']:5.1f})" for name, row in found["report"].items()]
    canaries = " / ".join(f"{value:.1f}" for value in found["canaries"].values())
    print(f"{', '.join(settings.values())}, seed {seed}: {'  '.join(cells)}  canaries {canaries}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS))
    parser.add_argument("--backends", nargs="+", choices=list(BACKENDS), default=list(BACKENDS), metavar="NAME")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--split", choices=["development", "reported"], default="development")
    parser.add_argument("--holdout", choices=["trusted", "as-given", "both"], default="both")
    parser.add_argument("--features", choices=["standardised", "raw"], default="standardised")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--save", metavar="FILE", help="append to a JSONL file, passing over what it holds already")
    options = parser.parse_args()
    kinds = ["trusted", "as-given"] if options.holdout == "both" else [options.holdout]
    for seed, setting, holdout in product(map(int, options.seeds.split(",")), options.settings, kinds):
        found = noisy_features(setting, options.split, holdout, seed)
        case = Case.of(found, features=options.features, is_trusted=holdout == "trusted", seed=seed)
        where = {"setting": setting, "split": options.split, "holdout": holdout, "features": options.features}
        for way, backend in product(options.ways, options.backends):
            what = {**where, "way": way, "backend": backend}
            if options.save and is_recorded(options.save, what, seed):
                continue
            result = examine(case, backend, way)
            show(what, seed, result)
            if options.save:
                append_result(options.save, {"benchmark": "frozen_backends", "settings": what, "seed": seed, **result})


if __name__ == "__main__":
    main()
