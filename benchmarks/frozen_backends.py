"""Curvature and damping on frozen features.

A linear head learns the noisy labels of frozen pretrained features. With every backend and damping it is watched while
it trains, or audited when it has. The head is the same every time, since nothing that watches may change it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

import sgoif
from benchmarks.experiment import FROZEN, Experiment, option
from benchmarks.frozen_noise import NoisyFeatures, noisy_features
from benchmarks.metrics import detection_report
from benchmarks.tables.rows import group_runs, latest, table
from sgoif.evidence import hash_ids
from sgoif.scanning.standardise import standardise
from sgoif.training.monitor import Monitor
from sgoif.training.schedule import Plan

SIGNALS = ("harm", "worst", "p_mislabeled")
WAYS = ("audited", "watched")
EPOCHS, BATCH, RATE = 3, 250, 1e-3
_LEAST_HELD, _MOST_HELD = 20, 20_000  # of a class, and in all

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
        is_held = found.held if is_trusted else choose_holdout(found.ids, found.given, 10)
        kept, held = (torch.from_numpy(np.flatnonzero(which)) for which in (~is_held, is_held))
        inputs = (
            standardise(found.rows, ~is_held).inputs if features == "standardised" else torch.from_numpy(found.rows)
        )
        labels = torch.from_numpy(found.given)
        wrong = (found.given != found.clean)[~is_held]
        return cls(inputs[kept], labels[kept], wrong, (inputs[held], labels[held]), is_trusted, seed)


def choose_holdout(ids: NDArray[Any], labels: NDArray[np.int64], num_classes: int) -> NDArray[np.bool_]:
    """Hold out the examples of each class with the smallest hashes: the same in every run, whatever their order.

    In all ``min(10%, max(2%, 50 per class), 20,000)``, at least 20 of each class where it has twice as many.
    """
    count = max(len(ids), 1)
    share = min(0.10, max(0.02, 50 * num_classes / count), _MOST_HELD / count)
    ranks = np.argsort(hash_ids(ids) << np.uint64(1), kind="stable")  # the top bit is the canaries' fold
    held = np.zeros(len(ids), bool)
    by_class = ranks[np.argsort(labels[ranks], kind="stable")]
    for mine in np.split(by_class, np.cumsum(np.bincount(labels, minlength=num_classes))[:-1]):
        wanted = max(round(share * len(mine)), min(_LEAST_HELD, len(mine) // 2))
        held[mine[:wanted]] = True
    return held


def examine(case: Case, backend: str, way: str) -> dict[str, Any]:
    """Watch a head learn, or audit it when it has; returns what is found, in percent."""
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
    return {"report": report}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One head, watched or audited by one backend."""

    setting: str = "pair-20"
    split: Literal["development", "reported"] = "reported"
    holdout: Literal["trusted", "as-given"] = "trusted"
    features: Literal["standardised", "raw"] = "standardised"
    way: str = option("audited", WAYS)
    backend: str = option("identity", BACKENDS)
    seed: int = 1


@lru_cache(maxsize=1)
def _case(setting: str, split: str, holdout: str, features: str, seed: int) -> Case:
    found = noisy_features(setting, split, holdout, seed)
    return Case.of(found, features=features, is_trusted=holdout == "trusted", seed=seed)


def measure(setup: Setup) -> dict[str, Any]:
    case = _case(setup.setting, setup.split, setup.holdout, setup.features, setup.seed)
    return examine(case, setup.backend, setup.way)


def frozen_backends() -> str:
    """AP of `harm`, `worst` and `p_mislabeled` by curvature and damping on frozen features, mean over seeds.

    The last column is the lowest P@1% of each over the settings.
    """
    runs = latest("frozen_backends.jsonl")
    settings = list(dict.fromkeys(run["settings"]["setting"] for run in runs))
    rows = []
    for (way, holdout, features), same in group_runs(runs, ("way", "holdout", "features")):
        where = f"{way}, {holdout}" + ("" if features == "standardised" else f", {features} features")
        for (backend,), mine in group_runs(same, ("backend",)):
            found = {setting: [run["report"] for run in each] for (setting,), each in group_runs(mine, ("setting",))}
            cells = [_slashed(_means(found[name], "ap")) if name in found else "" for name in settings]
            lowest = np.min([_means(reports, "p@1%") for reports in found.values()], axis=0)
            rows.append([where, backend, *cells, _slashed(lowest)])
            where = ""
    return table(("head, hold-out", "curvature, damping", *settings, "lowest P@1%"), rows)


def _means(reports: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return [float(np.mean([report[name][key] for report in reports])) for name in ("harm", "worst", "p_mislabeled")]


def _slashed(values: Iterable[float]) -> str:
    return " / ".join(f"{value:.1f}" for value in values)


EXPERIMENT = Experiment(
    name="frozen_backends",
    settings=Setup,
    run=measure,
    tables={"frozen_backends": frozen_backends},
    full={
        "setting": ("pair-20", "worst", "sym-40"),
        "holdout": ("trusted", "as-given"),
        "way": WAYS,
        "backend": ("identity", "diagonal, 0.1", "kfac, 0.1", "kfac, 10", "kfac, 100"),
        "seed": (1, 2, 3),
    },
    needs=FROZEN,
    describe=lambda row: ", ".join(f"{name} AP {found['ap']:.1f}" for name, found in row["report"].items()),
)
