"""The paper's ablation: Algorithm 1 with one part taken away at a time.

A training is recorded once: what the head saw, its weights, and the features of the hold-out at refreshes. Every
variant then watches the head of that record, so that they differ by nothing but their switches. A cell trains twice,
from two starts on the same pictures and labels, and rankings of the two are compared by Kendall's tau. Scores are
ranked as the monitor keeps them: standardised, averaged over visits by confidence.

Time is what a monitor spent in its own code and the network in passes over the hold-out, over the bare training.
Operations and products with the curvature are counted over forty steps.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

import sgoif
from benchmarks import data, loops, noise, trainings
from benchmarks.experiment import Experiment, option
from benchmarks.metrics import detection_report
from benchmarks.models import fresh_model
from benchmarks.tables.rows import latest, table
from benchmarks.work import count_work
from sgoif.linalg import LinearOperator
from sgoif.training.monitor import Monitor

FULL = sgoif.Method.paper()
VARIANTS: Mapping[str, sgoif.Method] = {
    "Algorithm 1, all parts": FULL,
    "no stability gate": replace(FULL, gate="none"),
    "a moving average as gate": replace(FULL, gate="moving-average"),
    "the gate as printed": replace(FULL, gate="paper"),
    "no confidence in the weights": replace(FULL, weighting="equal"),
    "no refinement by sketch-PCG": replace(FULL, refine_below=None),
    "no trigger: all of low confidence refined": replace(FULL, refine_if="low"),
    "Bernstein's interval as trigger": replace(FULL, refine_if="uncertain"),
    "no preconditioner": replace(FULL, sketch_rank=0),
    "no low-rank subspace": replace(FULL, subspace=None),
    "no temperature": replace(FULL, temperature=None),
    "no replacement of anchors": replace(FULL, replace_every=None, gram_below=None),
    "replacement by period alone": replace(FULL, gram_below=None),
    "none of these parts": sgoif.Method(curvature="lowrank", leak_horizon=None, gate="none"),
    "K-FAC in place of low rank": replace(FULL, curvature="kfac"),
    "no curvature": replace(FULL, curvature="identity", subspace=None),
    "this library's defaults": sgoif.Method(),
}
PLAN = sgoif.Plan()
SIGNALS = ("harm", "worst")
COUNTED_STEPS = 40
SUBSAMPLE = 2_000  # examples by which rankings are compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One draw of pictures and noise, trained on twice."""

    setting: str = "pair-20"
    dataset: str = option("cifar10", ("cifar10", "cifar100"))
    split: str = option("development", ("development", "reported"))
    seed: int = 0
    examples: int = 10_000
    epochs: int = 10


@dataclass(frozen=True, slots=True)
class Record:
    """One training, seen from its head."""

    features: list[Tensor]  # by step, [B, I]
    weights: list[tuple[Tensor, Tensor]]  # of the head, before each step
    rates: list[float]
    ids: list[Tensor]
    held: dict[int, Tensor]  # features of the whole hold-out at the steps that refresh
    labels: Tensor  # of the training
    held_labels: Tensor
    seconds: float  # of the bare training
    pass_seconds: float  # of the network over the examples of one refresh


class Head(nn.Module):
    """The head of a recorded training. Hold-out examples are known by their positions."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.fc = nn.Linear(inputs, outputs)
        self.held = torch.empty(0)

    def forward(self, seen: Tensor) -> Tensor:
        found: Tensor = self.fc(seen if seen.is_floating_point() else self.held[seen])
        return found


def measure(setup: Setup) -> dict[str, Any]:
    """Watch two trainings by all variants."""
    drawn = trainings.Setup(dataset=setup.dataset, split=setup.split, seed=setup.seed, examples=setup.examples)
    parts, stats = trainings.draw_parts(drawn)
    given, _ = noise.apply_to_split(setup.setting, parts, setup.seed, setup.dataset)
    images, labels = data.normalise(parts.train.pixels, *stats), torch.from_numpy(given.astype(np.int64))
    anchors = (data.normalise(parts.trusted.pixels, *stats), torch.from_numpy(parts.trusted.labels))
    wrong = given != parts.train.labels
    records = [record(images, labels, anchors, setup.epochs, start) for start in (setup.seed, setup.seed + 1000)]
    return {"variants": {name: _try(method, records, wrong) for name, method in VARIANTS.items()}}


def record(images: Tensor, labels: Tensor, anchors: tuple[Tensor, Tensor], num_epochs: int, seed: int) -> Record:
    """Train, and keep what the head sees."""
    recipe = loops.Recipe(num_epochs=num_epochs)
    model = fresh_model(seed, int(anchors[1].max()) + 1)
    head = next(module for module in model.modules() if isinstance(module, nn.Linear))
    optimizer = loops.optimiser(model, recipe)
    scheduler = loops.schedule(optimizer, recipe, len(images))
    found = Record([], [], [], [], {}, labels, anchors[1], 0.0, 0.0)
    seen: list[Tensor] = []
    head.register_forward_hook(lambda _, inputs, output: seen.append(inputs[0].detach().float()))
    model.train()
    seconds = pass_seconds = 0.0
    for batch in loops.epochs(images, labels, recipe, seed):
        if PLAN.is_refresh(batch.step):
            started = time.perf_counter()
            found.held[batch.step] = _features(model, anchors[0], recipe, seen)
            pass_seconds = (time.perf_counter() - started) * PLAN.examples_per_refresh / len(anchors[0])
        found.weights.append((head.weight.detach().clone(), head.bias.detach().clone()))
        found.rates.append(float(optimizer.param_groups[0]["lr"]))
        started = time.perf_counter()
        F.cross_entropy(loops.logits(model, batch.images, recipe), batch.labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        seconds += time.perf_counter() - started
        found.features.append(seen.pop())
        found.ids.append(batch.indices)
    return replace(found, seconds=seconds, pass_seconds=pass_seconds)


@torch.no_grad()
def _features(model: nn.Module, images: Tensor, recipe: loops.Recipe, seen: list[Tensor]) -> Tensor:
    model.eval()
    for part in images.contiguous(memory_format=torch.channels_last).split(250):
        loops.logits(model, part, recipe)
    model.train()
    found = torch.cat(seen)
    seen.clear()
    return found


def watch(method: sgoif.Method, found: Record, steps: int | None = None) -> tuple[Monitor, Iterator[int]]:
    """A monitor of a recorded head, and the steps to take it through."""
    inputs, outputs = found.features[0].shape[1], len(found.weights[0][1])
    model = Head(inputs, outputs)
    model.held = found.held[0]
    recipe = loops.Recipe()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, weight_decay=recipe.weight_decay)
    monitor = sgoif.watch(
        model,
        optimizer,
        train_size=len(found.labels),
        anchors=(torch.arange(len(found.held_labels)), found.held_labels),
        trusted=True,
        method=replace(method, probe=False, planned_steps=len(found.ids)),
        budget=sgoif.Budget(plan=PLAN),
    )
    assert isinstance(monitor, Monitor), "SGOIF_DISABLE is set"

    def walk() -> Iterator[int]:
        for step in range(len(found.ids) if steps is None else steps):
            with torch.no_grad():
                for parameter, value in zip((model.fc.weight, model.fc.bias), found.weights[step]):
                    parameter.copy_(value)
            optimizer.param_groups[0]["lr"] = found.rates[step]
            model.held = found.held.get(step, model.held)
            labels = found.labels[found.ids[step]]
            with monitor.step(found.ids[step], labels):
                F.cross_entropy(model(found.features[step]), labels).backward()
            yield step

    return monitor, walk()


def _try(method: sgoif.Method, records: Sequence[Record], wrong: NDArray[np.bool_]) -> dict[str, Any]:
    """What one variant finds in the trainings, and what it costs."""
    scores: dict[str, list[NDArray[np.float64]]] = {signal: [] for signal in SIGNALS}
    overheads = []
    for found in records:
        monitor, steps = watch(method, found)
        started = time.perf_counter()
        for _ in steps:
            pass
        total, share = time.perf_counter() - started, monitor.governor.overhead
        spent = total * share / (1 + share) + len(found.held) * found.pass_seconds
        overheads.append(spent / found.seconds)
        run = monitor.close()
        assert run.info["counters"]["faults"] == 0, run.info["faults"]
        order = np.argsort(run.table["id"])
        for signal in SIGNALS:
            scores[signal].append(np.nan_to_num(run.table[f"{signal}_std"][order]))
    return {
        **{signal: _report(values, wrong) for signal, values in scores.items()},
        "overhead": float(np.mean(overheads)),
        **_count(method, records[0]),
    }


def _report(scores: Sequence[NDArray[np.float64]], wrong: NDArray[np.bool_]) -> dict[str, float]:
    """Detection, the mean of both trainings, and how alike their rankings are."""
    from scipy.stats import kendalltau

    found = [detection_report(values, wrong) for values in scores]
    some = np.random.default_rng(0).permutation(len(wrong))[:SUBSAMPLE]
    alike = float(kendalltau(scores[0][some], scores[1][some]).statistic)
    kept = ("ap", "p@1%", "r@1%", "r@5%", "r@10%")
    return {name: float(np.mean([each[name] for each in found])) for name in kept} | {
        "tau": 0.0 if np.isnan(alike) else alike  # all scores equal, as behind a gate that never opens
    }


def _count(method: sgoif.Method, found: Record) -> dict[str, float]:
    """Operations over those of the network's own step, and products with the curvature, a step."""
    batch, classes = len(found.ids[0]), len(found.weights[0][1])
    network = fresh_model(0, classes).train()
    pictures = torch.randn(batch, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    _, bare = count_work(lambda: F.cross_entropy(network(pictures), found.labels[found.ids[0]]).backward())
    before = COUNTED_STEPS + 1 if len(found.ids) > 2 * COUNTED_STEPS else 0  # then from one refresh to another
    count = min(COUNTED_STEPS, len(found.ids) - before)
    _, steps = watch(method, found, before + count)
    for _ in itertools.islice(steps, before):
        pass
    with _count_products() as products:
        _, work = count_work(lambda: list(steps))
    assert bare is not None and work is not None
    alone = 3 * 2.0 * batch * found.features[0].shape[1] * classes  # of the head itself, forward and backward
    return {
        "flops": (work.flops / count - alone) / bare.flops,
        "products": products[0] / count,
    }


@contextmanager
def _count_products() -> Iterator[list[int]]:
    """Count columns that operators multiply, those inside another operator not again."""
    counted, depth, kinds = [0], [0], _subclasses(LinearOperator)
    originals = {kind: kind.__dict__["matmul"] for kind in kinds if "matmul" in kind.__dict__}

    def counting(original: Any) -> Any:
        def matmul(self: LinearOperator, rhs: Tensor) -> Tensor:
            counted[0] += rhs.shape[1] if depth[0] == 0 else 0
            depth[0] += 1
            try:
                product: Tensor = original(self, rhs)
                return product
            finally:
                depth[0] -= 1

        return matmul

    for kind, original in originals.items():
        kind.matmul = counting(original)
    try:
        yield counted
    finally:
        for kind, original in originals.items():
            kind.matmul = original


def _subclasses(kind: Any) -> list[Any]:
    return [kind, *(below for each in kind.__subclasses__() for below in _subclasses(each))]


def ablation() -> str:
    """One row per variant: detection by both scores, likeness of two trainings, cost."""
    sections = []
    for run in latest(EXPERIMENT.results):
        settings, rows = run["settings"], []
        for name in (name for name in VARIANTS if name in run["variants"]):  # rows are written in the order of letters
            found = run["variants"][name]
            harm, worst = found["harm"], found["worst"]
            recalls = " / ".join(f"{harm[f'r@{q}%']:.1f}" for q in (1, 5, 10))
            rows.append(
                [
                    name,
                    *(f"{harm[key]:.1f}" for key in ("ap", "p@1%")),
                    recalls,
                    f"{harm['tau']:.2f}",
                    *(f"{worst[key]:.1f}" for key in ("ap", "p@1%")),
                    f"{1 + found['overhead']:.3f}",
                    f"{100 * found['flops']:.2f}%",
                    f"{found['products']:.0f}",
                ]
            )
        header = (
            *("variant", "`harm` AP", "P@1%", "R@1 / 5 / 10%", "Kendall's τ", "`worst` AP", "P@1%"),
            *("time", "operations added", "products a step"),
        )
        kind = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}[settings["dataset"]]
        title = f"{kind}, {settings['setting']}, {settings['examples']:,} pictures, {settings['epochs']} epochs"
        sections.append(f"{title}, seed {run['seed']}:\n\n{table(header, rows)}")
    return "\n\n".join(sections)


EXPERIMENT = Experiment(
    name="paper",
    settings=Setup,
    run=measure,
    tables={"paper": ablation},
    full={"split": "reported", "setting": "pair-20", "dataset": ("cifar10", "cifar100"), "seed": (1, 2, 3)},
    small={"examples": 500, "epochs": 1},
    describe=lambda row: ", ".join(f"{name} {each['harm']['ap']:.1f}" for name, each in row["variants"].items()),
    needs=("scipy",),
)
