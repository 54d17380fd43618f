"""What forgetting would do to a network that was stopped early, predicted and retrained.

A small convolutional network learns 3,000 Fashion-MNIST pictures by SGD, at a rate that falls to zero. Groups of them
are left out, a random tenth or half of a class, and the network is trained anew from scratch, three times each, so that
the mean tells something of the group and not only of the order of the batches. :meth:`sgoif.Run.unlearning_plan`, which
moves the head of one finished network, predicts the losses of test pictures; beside it the sums of K-FAC influence and
of gradient products at the head. The ceiling is what a perfect forecast would reach, by how far the retrainings agree.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

import sgoif
from benchmarks import data
from benchmarks.agreement import ceiling, pearson, spearman
from benchmarks.experiment import Experiment, option
from benchmarks.tables.rows import describe_seeds, table
from benchmarks.unlearning import METHODS, Asked, draw_pictures, read_runs
from sgoif.run import Run
from sgoif.tables import MemoryTables

GROUPS = {"random 10%": 14, "half of a class": 10}

Floats = NDArray[np.float64]
Pictures = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One drawn problem; seed 0 is for development."""

    part: Literal["network"] = "network"
    examples: int = 3_000
    tested: int = 1_000
    dampings: tuple[float, ...] = option((0.0, 0.01), help="with + between them; the chosen one last")
    repeats: int = option(3, help="retrainings of each group")
    epochs: int = 8
    batch: int = 100
    lr: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 5e-4
    seed: int = 1


def network() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(16 * 49, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


def train(pictures: Pictures, rows: NDArray[np.int64], recipe: Settings, seed: int) -> nn.Module:
    """One network; the seed draws its start and the order of its batches."""
    images, labels = (part[torch.from_numpy(rows)] for part in pictures)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = network()
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(
        model.parameters(), recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay
    )
    steps = recipe.epochs * math.ceil(len(labels) / recipe.batch)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    for _ in range(recipe.epochs):
        for batch in torch.randperm(len(labels), generator=generator).split(recipe.batch):
            optimizer.zero_grad()
            F.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
            scheduler.step()
    return model.eval()


def read_sets(settings: Settings) -> tuple[Pictures, Pictures]:
    """Training and test pictures."""
    drawn, _ = draw_pictures(data.fashion_mnist("train"), settings.examples, settings.seed)
    held = data.fashion_mnist("test", settings.tested)
    return _tensors(drawn), _tensors(held.take(slice(0, settings.tested)))


def _tensors(images: data.Images) -> Pictures:
    return data.normalise(images.pixels, *data.FASHION_MNIST_STATS), torch.from_numpy(images.labels)


def requests(labels: NDArray[np.int64], seed: int) -> Iterator[Asked]:
    rng = np.random.default_rng(seed + 1000)
    for _ in range(GROUPS["random 10%"]):
        yield Asked("random 10%", rng.choice(len(labels), len(labels) // 10, replace=False))
    for label in range(GROUPS["half of a class"]):
        members = np.flatnonzero(labels == label)
        yield Asked("half of a class", rng.choice(members, len(members) // 2, replace=False))


@torch.no_grad()
def test_losses(model: nn.Module, test: Pictures) -> Floats:
    return F.cross_entropy(model(test[0]), test[1], reduction="none").double().numpy()


@dataclass(frozen=True)
class World:
    """The pictures, the groups that are left out, and the networks that had all of them."""

    settings: Settings
    train_set: Pictures
    test: Pictures
    asked: Sequence[Asked]
    full: Sequence[nn.Module]  # one for each repeat

    def retrain(self) -> Floats:
        """Changes of the test losses, ``[repeats, groups, tested]``; a repeat has the same seed with and without."""
        everyone = np.arange(len(self.train_set[1]))
        found = np.empty((len(self.full), len(self.asked), len(self.test[1])))
        for repeat, whole in enumerate(self.full):
            before = test_losses(whole, self.test)
            for k, request in enumerate(self.asked):
                left = np.setdiff1d(everyone, request.rows)
                found[repeat, k] = (
                    test_losses(train(self.train_set, left, self.settings, seed=repeat), self.test) - before
                )
            print(f"repeat {repeat + 1} of {len(self.full)}", flush=True)
        return found

    def predict(self) -> tuple[dict[str, Floats], list[dict[str, Any]]]:
        """Changes by every method, ``[groups, tested]``, and the certificates of the plan at the last damping."""
        model, train_set, test = self.full[0], self.train_set, self.test
        run, before, n = Run({}, MemoryTables({})), test_losses(model, test), len(train_set[1])
        found: dict[str, Floats] = {}
        certificates: list[dict[str, Any]] = []
        for damping in self.settings.dampings:
            rows, certificates = [], []
            known: dict[str, Any] = {"weight_decay": self.settings.weight_decay, "damping": damping}
            for request in self.asked:
                plan = run.unlearning_plan(request.rows.tolist(), model=model, dataset=train_set, holdout=test, **known)
                after = torch.from_numpy(plan.predictions(test[0]).after)
                rows.append(F.cross_entropy(after, test[1], reduction="none").numpy() - before)
                seen = plan.certificate
                certificates.append({"relative": seen.relative, "before": seen.before, "unfinished": seen.unfinished})
            found[f"plan, damping {damping:g}"] = np.stack(rows)
        for name, curvature in (("influence", "kfac"), ("gradients", "identity")):
            scores = sgoif.attribute(model, train_set, test, curvature=curvature, as_matrix=True)
            found[name] = np.stack([-scores[request.rows].sum(0) / n for request in self.asked])
        return found, certificates


def average_classes(changes: Floats, labels: NDArray[np.int64]) -> Floats:
    """Means over each class of the test pictures, of the last axis."""
    return np.stack([changes[..., labels == c].mean(-1) for c in range(10)], -1)


def judge(forecast: Floats, truth: Floats) -> dict[str, float]:
    """Correlations over the groups, for each column; the mean. And the true change over the predicted one, in all."""
    true = truth.mean(0)
    return {
        "pearson": float(pearson(forecast, true).mean()),
        "spearman": float(spearman(forecast, true).mean()),
        "slope": float((forecast * true).sum() / np.square(forecast).sum()),
    }


def measure(settings: Settings) -> dict[str, Any]:
    started = time.process_time()
    train_set, test = read_sets(settings)
    labels, test_labels = train_set[1].numpy(), test[1].numpy()
    asked = list(requests(labels, settings.seed))
    everyone = np.arange(len(labels))
    full = [train(train_set, everyone, settings, seed=repeat) for repeat in range(settings.repeats)]
    accuracy = float((full[0](test[0]).argmax(1) == test[1]).float().mean())
    world = World(settings, train_set, test, asked, full)
    truth = world.retrain()
    forecasts, certificates = world.predict()
    found: dict[str, Any] = {"accuracy": accuracy}
    for kind in GROUPS:
        rows = [k for k, request in enumerate(asked) if request.kind == kind]
        by_anchor = average_classes(truth[:, rows], test_labels)
        found[kind] = {
            "ceiling": {"pictures": ceiling(truth[:, rows]), "anchors": ceiling(by_anchor)},
            "methods": {
                name: {
                    "pictures": judge(changes[rows], truth[:, rows]),
                    "anchors": judge(average_classes(changes[rows], test_labels), by_anchor),
                }
                for name, changes in forecasts.items()
            },
            "certificates": [certificates[k] for k in rows],
        }
    return {**found, "cpu_s": time.process_time() - started}


def correlations() -> str:
    """Correlations over groups, for test pictures and for the mean loss of each class."""
    runs = read_runs("network")
    kinds = [name for name, value in runs[0].items() if isinstance(value, dict) and "methods" in value] if runs else []
    rows = []
    for kind in kinds:
        found = [run[kind] for run in runs]
        name = f"{kind} ({len(found[0]['certificates'])} groups, {describe_seeds(runs)})"
        for method in sorted(found[0]["methods"], key=lambda method: not method.startswith("plan")):
            said = METHODS.get(method, f"**`unlearning_plan`**, {method.partition(', ')[2]}")
            said = said.replace("curvature of all, first order", "K-FAC")
            cells = [
                f"{np.mean([one['methods'][method][what][how] for one in found]):.2f}"
                for what in ("anchors", "pictures")
                for how in ("pearson", "spearman")
            ]
            slope = np.mean([one["methods"][method]["anchors"]["slope"] for one in found])
            rows.append([name, said, *cells, "" if method == "gradients" else f"{slope:.2f}"])  # they have no unit
        ceilings = [f"{np.mean([one['ceiling'][what] for one in found]):.2f}" for what in ("anchors", "pictures")]
        rows.append([name, "the ceiling: retraining itself", ceilings[0], "", ceilings[1], "", ""])
    header = [
        "left out",
        "predicted by",
        "classes, Pearson",
        "Spearman",
        "pictures, Pearson",
        "Spearman",
        "true over predicted",
    ]
    return table(header, rows)


NETWORK = Experiment(
    name="unlearning_network",
    settings=Settings,
    run=measure,
    describe=lambda row: "\n".join(f"{kind}: {row[kind]['ceiling']} {row[kind]['methods']}" for kind in GROUPS),
    benchmark="unlearning",
    file="unlearning.jsonl",
    tables={"unlearning_network": correlations},
    full={"seed": [1, 2]},
)
