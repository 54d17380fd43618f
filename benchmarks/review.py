"""From review to accuracy.

A monitored training on labels that people gave (CIFAR-10 ``worst``) orders the examples. A simulated reviewer looks at
the first n of them and says the truth, but for 5% slips. The answers go the way of a user's: decisions.csv, merge,
manifest, ``sgoif.cleaned``; then the network is trained from scratch, on all examples and by the same recipe. What
the same number of looks buys is compared between our order, that of AUM (the mean margin of the same training) and
a random one.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Subset, TensorDataset

import sgoif
from benchmarks import cache, data, loops, noise
from benchmarks.experiment import Experiment, option
from benchmarks.metrics import detection_report, weighted_mean
from benchmarks.models import fresh_model
from benchmarks.tables.rows import Run, latest, table
from sgoif.review.decisions import Decision, read_decisions, write_decisions
from sgoif.review.manifest import settle, write_manifest
from sgoif.review.merge import merge
from sgoif.store import RunFiles

ORDERS = ("ours", "aum", "random")
BUDGETS = (1000, 2000, 4000, 8000)
SLIPS = 0.05

Labels = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is trained; the defaults are tier M."""

    setting: str = "worst"
    split: Literal["development", "reported"] = "reported"
    examples: int = 20_000
    held_per_class: int = 100  # of each given class; what is left to train on should fill its batches
    epochs: int = 10
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Setup):
    """What is reviewed of it before it is trained anew."""

    order: str = option("ours", ("none", "truth", *ORDERS), help="none looks at nothing, truth knows all labels")
    budget: int = 1000
    slips: float = SLIPS


@dataclass(frozen=True, slots=True)
class World:
    """The data of a seed: what is given, and what only the reviewer knows. Ids are positions."""

    dataset: TensorDataset  # images with the labels as given
    given: Labels
    clean: Labels
    held: NDArray[np.bool_]  # not trained on while the labels are judged
    class_names: tuple[str, ...]

    @classmethod
    def of(cls, images: data.Images, given: Labels, held_per_class: int) -> World:
        """Hold back the first examples of each given class."""
        held = np.isin(np.arange(len(given)), data.first_per_class(given, held_per_class, images.num_classes))
        dataset = TensorDataset(data.normalise(images.pixels, *data.CIFAR10_STATS), torch.from_numpy(given))
        return cls(dataset, given, images.labels, held, images.class_names)


@lru_cache(1)
def make_world(setup: Setup) -> World:
    parts = data.draw(setup.split, setup.examples, setup.seed)
    given = noise.apply_to_split(setup.setting, parts, setup.seed)[0].astype(np.int64)
    return World.of(parts.train, given, setup.held_per_class)


def train_watched(world: World, setup: Setup, out: Path) -> None:
    """Train on all but the hold-out, which has its labels as given, and write the run."""
    training, holdout = (Subset(world.dataset, np.flatnonzero(part).tolist()) for part in (~world.held, world.held))
    positions = torch.tensor(training.indices)
    images, labels = (tensor[positions] for tensor in world.dataset.tensors)
    monitor = loops.watch(
        *(fresh_model(setup.seed), images, labels, loops.Recipe(num_epochs=setup.epochs), setup.seed),
        ids=positions,
        anchors=sgoif.with_ids(holdout),
        class_names=world.class_names,
        out=str(out),
    )
    run = monitor.close()
    assert run.info["counters"]["faults"] == 0, run.info["faults"]


def run_folder() -> Path:
    """Where finished runs are kept."""
    return cache.folder() / "review"


def finished_run(world: World, setup: Setup) -> Path:
    """The run of a seed, trained once and kept in the cache: all budgets must rest on the same order."""
    name = "-".join(str(value) for value in asdict(setup).values())
    place = run_folder() / name
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=place.parent, prefix="part-"))
        train_watched(world, setup, partial / "run")
        if place.exists():  # another process was faster
            shutil.rmtree(partial)
        else:
            (partial / "run").rename(place)
            partial.rmdir()
    return place


def orders(world: World, run: Path, seed: int) -> dict[str, Labels]:
    """Positions in the order in which each method would have them looked at."""
    count = len(world.given)
    found = sgoif.load(run)
    assert found.is_calibrated, found.info.get("no_p_reason")
    ours = found.label_issues()["id"].to_numpy()
    visits, held = found.visits, found.holdout()
    margin = weighted_mean(visits["id"], visits["margin"].astype(np.float64), np.ones(len(visits["id"])), count)
    margin[held["id"].to_numpy()] = held["margin"].to_numpy()
    # a margin means less on a held-out example than on one that was learnt: the two meet by their ranks
    rank = np.zeros(count)
    for part in (world.held, ~world.held):
        rank[part] = np.argsort(np.argsort(margin[part], kind="stable")) / part.sum()
    aum, chance = np.argsort(rank, kind="stable"), np.random.default_rng(seed).permutation(count)
    # a short training has not seen all of its hold-out, and nobody reviews what the run does not hold
    return {"ours": ours, "aum": aum[np.isin(aum, ours)], "random": chance[np.isin(chance, ours)]}


def ranking(world: World, ordered: Labels) -> dict[str, float]:
    """How well an order finds the wrong labels."""
    suspicion = np.zeros(len(world.given))
    suspicion[ordered] = np.arange(len(ordered), 0, -1)
    return detection_report(suspicion, world.given != world.clean)


def answers(world: World, seed: int, slips: float = SLIPS) -> Labels:
    """What the reviewer would say of every example: the truth, or at a slip another class. The same for all orders."""
    rng = np.random.default_rng([seed, 5])
    slip = rng.random(len(world.clean)) < slips
    other = (world.clean + rng.integers(1, 10, len(world.clean))) % 10
    return np.where(slip, other, world.clean)


def review(world: World, run: Path, looked_at: Labels, said: Labels, folder: Path) -> tuple[Any, dict[str, int]]:
    """Send the answers the way of a user's; returns the cleaned dataset and what became of its examples."""
    names = world.class_names
    decisions = [
        Decision(str(i), int(world.given[i]), "keep", reviewer="simulated")
        if said[i] == world.given[i]
        else Decision(str(i), int(world.given[i]), "relabel", (int(said[i]),), reviewer="simulated")
        for i in looked_at.tolist()
    ]
    write_decisions(decisions, folder / "decisions.csv")
    with RunFiles(run) as files:
        settled = settle(files, merge(read_decisions(folder / "decisions.csv", names, len(names))))
        assert len(settled.applied) == len(looked_at)
        write_manifest(files, settled, folder / "manifest.parquet", names)
    return sgoif.cleaned(world.dataset, folder / "manifest.parquet"), settled.counts()


def retrained_accuracy(images: torch.Tensor, labels: torch.Tensor, setup: Setup) -> float:
    """Accuracy on the 10,000 test images after a training from scratch."""
    recipe = loops.Recipe(num_epochs=setup.epochs)
    model = fresh_model(setup.seed)
    loops.train(model, images, labels, recipe, setup.seed)
    test = data.cifar10("test")
    inputs = data.normalise(test.pixels, *data.CIFAR10_STATS).contiguous(memory_format=torch.channels_last)
    return loops.accuracy(model, inputs, torch.from_numpy(test.labels), recipe)


def measure(world: World, setup: Setup, order: str, budget: int, slips: float = SLIPS) -> dict[str, Any]:
    """One training and what it was trained on."""
    started = time.perf_counter()
    images, given = world.dataset.tensors
    counts: Mapping[str, int] = {}
    found: dict[str, Any] = {}
    if order == "truth":
        labels = torch.from_numpy(world.clean)
    elif order == "none":
        labels = given
    else:
        run = finished_run(world, setup)
        ordered = orders(world, run, setup.seed)[order]
        looked_at = ordered[:budget]
        found["found"] = int((world.given != world.clean)[looked_at].sum())
        found["ranking"] = ranking(world, ordered)
        with tempfile.TemporaryDirectory() as folder:
            dataset, counts = review(world, run, looked_at, answers(world, setup.seed, slips), Path(folder))
        items = [dataset[i] for i in range(len(dataset))]
        images, labels = (torch.stack(list(column)) for column in zip(*items))
    accuracy = retrained_accuracy(images, labels, setup)
    wrong = int((labels.numpy() != world.clean).sum())
    seconds = time.perf_counter() - started
    return {"accuracy": accuracy, "wrong_labels": wrong, "counts": dict(counts), "seconds": seconds, **found}


def run(settings: Settings) -> dict[str, Any]:
    setup = Setup(**{item.name: getattr(settings, item.name) for item in fields(Setup)})
    return measure(make_world(setup), setup, settings.order, settings.budget, settings.slips)


def review_table() -> str:
    """Test accuracy after a review of so many examples, in three orders, mean over seeds and every seed's."""
    columns = {"ours": "our order", "aum": "AUM's order", "random": "random order"}
    cells: dict[tuple[str, int], list[Run]] = {}
    for run in sorted(latest("review.jsonl"), key=lambda run: int(run["seed"])):
        cells.setdefault((run["settings"]["order"], run["settings"]["budget"]), []).append(run)
    budgets = sorted({budget for order, budget in cells if order in columns})
    rows = [[f"{budget:,}", *(_cell(cells.get((order, budget), [])) for order in columns)] for budget in budgets]
    none, truth = (
        [[said, _cell(cells[order, 0]), "", ""]] if (order, 0) in cells else []
        for order, said in (("none", "none"), ("truth", "all labels true"))
    )
    return table(("examples looked at", *columns.values()), [*none, *rows, *truth])


def _cell(runs: Sequence[Run]) -> str:
    if not runs:
        return ""
    accuracies = [100 * run["accuracy"] for run in runs]
    wrong = np.mean([run["wrong_labels"] for run in runs])
    each = f" ({', '.join(f'{value:.1f}' for value in accuracies)})" if len(runs) > 1 else ""
    return f"{np.mean(accuracies):.1f}{each}; {wrong:,.0f} wrong labels left"


REVIEW = Experiment(
    name="review",
    settings=Settings,
    run=run,
    tables={"review": review_table},
    describe=lambda row: f"{row['wrong_labels']} wrong labels, accuracy {row['accuracy']:.2%}",
    full=[
        {"order": ["none", "truth"], "budget": 0, "seed": [1, 2]},
        {"order": list(ORDERS), "budget": list(BUDGETS), "seed": [1, 2]},
    ],
)
