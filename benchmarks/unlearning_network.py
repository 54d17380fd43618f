"""The same of a network that was stopped early: ``python -m benchmarks.unlearning_network --seeds 1``.

A small convolutional network learns 3,000 Fashion-MNIST pictures by SGD, at a rate that falls to zero. Groups of them
are left out, a random tenth or half of a class, and the network is trained anew from scratch, three times each, so that
the mean tells something of the group and not only of the order of the batches. :meth:`sgoif.Run.unlearning_plan`, which
moves the head of one finished network, predicts the losses of test pictures; beside it the sums of K-FAC influence and
of gradient products at the head. The ceiling is what a perfect forecast would reach, by how far the retrainings agree.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

import sgoif
from benchmarks import data
from benchmarks.agreement import pearson, spearman
from benchmarks.records import append_result, is_recorded
from benchmarks.unlearning import FILE, Asked
from sgoif.run import Run
from sgoif.tables import MemoryTables

RECIPE = {"epochs": 8, "batch": 100, "lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4}
GROUPS = {"random 10%": 14, "half of a class": 10}
REPEATS = 3

Floats = NDArray[np.float64]
Pictures = tuple[Tensor, Tensor]


def network() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(16 * 49, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


def train(pictures: Pictures, rows: NDArray[np.int64], seed: int) -> nn.Module:
    """One network; the seed draws its start and the order of its batches."""
    images, labels = (part[torch.from_numpy(rows)] for part in pictures)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = network()
    generator = torch.Generator().manual_seed(seed)
    settings: dict[str, Any] = {name: RECIPE[name] for name in ("lr", "momentum", "weight_decay")}
    optimizer = torch.optim.SGD(model.parameters(), **settings)
    steps = int(RECIPE["epochs"]) * math.ceil(len(labels) / int(RECIPE["batch"]))
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    for _ in range(int(RECIPE["epochs"])):
        for batch in torch.randperm(len(labels), generator=generator).split(int(RECIPE["batch"])):
            optimizer.zero_grad()
            F.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
            scheduler.step()
    return model.eval()


def sets(examples: int, tested: int, seed: int) -> tuple[Pictures, Pictures]:
    """Training and test pictures; seed 0 is for development and draws from the first 20,000."""
    pictures, rng = data.fashion_mnist("train"), np.random.default_rng(seed)
    pool = np.arange(data.NUM_DEVELOPMENT) if seed == 0 else np.arange(data.NUM_DEVELOPMENT, len(pictures))
    drawn = pictures.take(np.sort(rng.choice(pool, examples, replace=False)))
    held = data.fashion_mnist("test", tested)
    return _tensors(drawn), _tensors(held.take(slice(0, tested)))


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


def retrained_changes(train_set: Pictures, test: Pictures, asked: Sequence[Asked], full: Sequence[nn.Module]) -> Floats:
    """Changes of the test losses, ``[repeats, groups, tested]``; a repeat has the same seed with and without."""
    everyone, found = np.arange(len(train_set[1])), np.empty((len(full), len(asked), len(test[1])))
    for repeat, whole in enumerate(full):
        before = test_losses(whole, test)
        for k, request in enumerate(asked):
            model = train(train_set, np.setdiff1d(everyone, request.rows), seed=repeat)
            found[repeat, k] = test_losses(model, test) - before
        print(f"repeat {repeat + 1} of {len(full)}", flush=True)
    return found


def predicted(
    model: nn.Module, train_set: Pictures, test: Pictures, asked: Sequence[Asked], dampings: Sequence[float]
) -> tuple[dict[str, Floats], list[dict[str, Any]]]:
    """Changes by every method, ``[groups, tested]``, and the certificates of the plan at the last damping."""
    run, before, n = Run({}, MemoryTables({})), test_losses(model, test), len(train_set[1])
    found: dict[str, Floats] = {}
    certificates: list[dict[str, Any]] = []
    for damping in dampings:
        rows, certificates = [], []
        for request in asked:
            settings: dict[str, Any] = {"weight_decay": RECIPE["weight_decay"], "damping": damping}
            plan = run.unlearning_plan(request.rows.tolist(), model=model, dataset=train_set, holdout=test, **settings)
            after = torch.from_numpy(plan.predictions(test[0]).after)
            rows.append(F.cross_entropy(after, test[1], reduction="none").numpy() - before)
            seen = plan.certificate
            certificates.append({"relative": seen.relative, "before": seen.before, "unfinished": seen.unfinished})
        found[f"plan, damping {damping:g}"] = np.stack(rows)
    for name, curvature in (("influence", "kfac"), ("gradients", "identity")):
        scores = sgoif.attribute(model, train_set, test, curvature=curvature, as_matrix=True)
        found[name] = np.stack([-scores[request.rows].sum(0) / n for request in asked])
    return found, certificates


def anchors(changes: Floats, labels: NDArray[np.int64]) -> Floats:
    """Means over each class of the test pictures, of the last axis."""
    return np.stack([changes[..., labels == c].mean(-1) for c in range(10)], -1)


def judged(forecast: Floats, truth: Floats) -> dict[str, float]:
    """Correlations over the groups, for each column; the mean. And the true change over the predicted one, in all."""
    true = truth.mean(0)
    return {
        "pearson": float(pearson(forecast, true).mean()),
        "spearman": float(spearman(forecast, true).mean()),
        "slope": float((forecast * true).sum() / np.square(forecast).sum()),
    }


def ceiling(truth: Floats) -> float:
    """``√r``, with the reliability ``r`` of the mean over the repeats, from how far two of them agree."""
    count = len(truth)
    pairs = [pearson(truth[a], truth[b]).mean() for a in range(count) for b in range(a)]
    agreed = max(float(np.mean(pairs)), 0.0)
    return float(np.sqrt(count * agreed / (1 + (count - 1) * agreed)))


def measure(examples: int, tested: int, seed: int, dampings: Sequence[float]) -> dict[str, Any]:
    started = time.process_time()
    train_set, test = sets(examples, tested, seed)
    labels, test_labels = train_set[1].numpy(), test[1].numpy()
    asked = list(requests(labels, seed))
    full = [train(train_set, np.arange(len(labels)), seed=repeat) for repeat in range(REPEATS)]
    accuracy = float((full[0](test[0]).argmax(1) == test[1]).float().mean())
    truth = retrained_changes(train_set, test, asked, full)
    forecasts, certificates = predicted(full[0], train_set, test, asked, dampings)
    found: dict[str, Any] = {"accuracy": accuracy}
    for kind in GROUPS:
        rows = [k for k, request in enumerate(asked) if request.kind == kind]
        by_anchor = anchors(truth[:, rows], test_labels)
        found[kind] = {
            "ceiling": {"pictures": ceiling(truth[:, rows]), "anchors": ceiling(by_anchor)},
            "methods": {
                name: {
                    "pictures": judged(changes[rows], truth[:, rows]),
                    "anchors": judged(anchors(changes[rows], test_labels), by_anchor),
                }
                for name, changes in forecasts.items()
            },
            "certificates": [certificates[k] for k in rows],
        }
    return {**found, "cpu_s": time.process_time() - started}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=3_000)
    parser.add_argument("--tested", type=int, default=1_000)
    parser.add_argument("--seeds", default="1", help="comma-separated; 0 is for development")
    parser.add_argument("--dampings", default="0", help="comma-separated; the chosen one last")
    parser.add_argument("--save", help=f"append results to this file, such as {FILE}")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dampings = [float(value) for value in options.dampings.split(",")]
    for seed in map(int, options.seeds.split(",")):
        settings = {"part": "network", "examples": options.examples, "tested": options.tested, "dampings": dampings}
        settings |= {"repeats": REPEATS, **RECIPE}
        if options.save and is_recorded(options.save, settings, seed):
            continue
        found = measure(options.examples, options.tested, seed, dampings)
        for kind in GROUPS:
            print(f"seed {seed}, {kind}: {found[kind]['ceiling']} {found[kind]['methods']}", flush=True)
        if options.save:
            append_result(options.save, {"benchmark": "unlearning", "settings": settings, "seed": seed, **found})


if __name__ == "__main__":
    main()
