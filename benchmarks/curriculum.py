"""What weights of examples are worth: accuracy by method, the difference to plain training, and the price.

A ResNet-9 is trained from scratch on 20,000 CIFAR-10 images with labels as given, by each method of
:mod:`benchmarks.robust`, and tested on the 10,000 test images. Every method gets the same 20,000 labels; ours keeps 100
of each given class, as given, for its hold-out, and trains on the others. On the development set the last 4,000 images
are the test, with their true labels, and the others are trained on: nothing is chosen by test images.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks import data, loops, noise, robust
from benchmarks.experiment import Experiment, option
from benchmarks.review import World
from benchmarks.tables.rows import Run, interval, latest, table

DEVELOPMENT_TEST = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One training; the defaults are tier M."""

    setting: str = "pair-20"
    method: str = option("plain", robust.METHODS)
    split: Literal["development", "reported"] = "reported"
    examples: int = 20_000
    held_per_class: int = 100  # of each given class; what is left to train on should fill its batches
    epochs: int = 10
    seed: int = 1


def make_world(setup: Setup) -> tuple[World, data.Images]:
    """What is trained on, and the images that accuracy is measured on."""
    is_development = setup.split == "development"
    parts = data.development() if is_development else data.reported(setup.examples, setup.seed)
    given = noise.apply_to_split(setup.setting, parts, setup.seed)[0].astype(np.int64)
    test = data.cifar10("test")
    images = parts.train
    if is_development:
        images, test = images.take(slice(0, setup.examples)), images.take(slice(len(images) - DEVELOPMENT_TEST, None))
        given = given[: len(images)]
    return World.of(images, given, setup.held_per_class), test


def accuracies(model: nn.Module, test: data.Images, recipe: loops.Recipe) -> list[float]:
    """The share of each class that is found."""
    inputs = data.normalise(test.pixels, *data.CIFAR10_STATS).contiguous(memory_format=torch.channels_last)
    labels = torch.from_numpy(test.labels)

    def of_class(label: int) -> float:
        mine: Tensor = labels == label
        return loops.accuracy(model, inputs[mine], labels[mine], recipe)

    return [of_class(label) for label in range(test.num_classes)]


def measure(setup: Setup) -> dict[str, Any]:
    """One training: accuracy, by class too, and what it cost; of two networks the mean."""
    world, test = make_world(setup)
    started, cpu = time.perf_counter(), time.process_time()
    models, told = robust.train_by(setup.method, world, setup.epochs, setup.seed)
    spent = {"seconds": time.perf_counter() - started, "cpu_s": time.process_time() - cpu}
    by_class = np.mean([accuracies(model, test, loops.Recipe()) for model in models], axis=0)
    sizes = np.bincount(test.labels, minlength=test.num_classes)
    accuracy = float((by_class * sizes).sum() / sizes.sum())
    return {"accuracy": accuracy, "by_class": by_class.round(4).tolist(), **spent, **told}


_METHODS = {
    "plain": "plain training",
    "plain, without hold-out": "plain training, without our hold-out",
    "ours": "**`monitor.weights`** in the loss",
    "ours, sampler": "**`InfluenceSampler`**",
    "ours, class sizes": "sizes of classes alone, by the same weights",
    "SCE": "symmetric cross-entropy",
    "mixup": "mixup, alpha 1",
    "mixup, alpha 0.2": "mixup, alpha 0.2",
    "co-teaching": "co-teaching, told the rate",
}
_SETTINGS = {"pair-20": "pair-20 (20%)", "worst": "worst (40%)", "clean": "clean"}


def _reported() -> dict[tuple[str, str], dict[int, Run]]:
    """Trainings by setting and method, and in these by seed."""
    found: dict[tuple[str, str], dict[int, Run]] = {}
    for run in latest("curriculum.jsonl"):
        settings = run["settings"]
        if settings["split"] == "reported":
            found.setdefault((settings["setting"], settings["method"]), {})[run["seed"]] = run
    return found


def accuracy_table() -> str:
    """Accuracy of every method on every setting; differences are paired by seed."""
    found, rows = _reported(), []
    for setting, said in _SETTINGS.items():
        plain = found.get((setting, "plain"), {})
        for method, name in _METHODS.items():
            runs = found.get((setting, method), {})
            if runs:
                values = [100 * runs[seed]["accuracy"] for seed in sorted(runs)]
                each = ", ".join(f"{value:.1f}" for value in values)
                rows.append([said, name, f"{np.mean(values):.1f} ({each})", *_beside(plain, runs)])
    return table(["labels (wrong)", "method", "accuracy (by seed)", "over plain", "CPU time over plain"], rows)


def _beside(plain: Mapping[int, Run], runs: Mapping[int, Run]) -> list[str]:
    both = [seed for seed in sorted(runs) if seed in plain]
    if not both or runs == plain:
        return ["", ""]
    gains = [100 * (runs[seed]["accuracy"] - plain[seed]["accuracy"]) for seed in both]
    costs = [runs[seed]["cpu_s"] / plain[seed]["cpu_s"] for seed in both]
    return [interval(gains, "+"), f"{np.mean(costs):.2f}"]


def classes_table() -> str:
    """Accuracy by class under pair noise: which classes lose, and which win."""
    found = _reported()
    names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    rows = []
    for method, name in _METHODS.items():
        runs = found.get(("pair-20", method), {})
        if runs:
            means = np.mean([run["by_class"] for run in runs.values()], axis=0)
            rows.append([name, *(f"{100 * value:.0f}" for value in means)])
    return table(["method, pair-20", *names], rows)


EXPERIMENT = Experiment(
    name="curriculum",
    settings=Setup,
    run=measure,
    tables={"curriculum": accuracy_table, "curriculum_classes": classes_table},
    full={"setting": ("pair-20", "worst", "clean"), "method": tuple(robust.METHODS), "seed": (1, 2, 3)},
    small={"method": ("plain", "ours"), "split": "development", "examples": 800, "epochs": 1, "seed": 0},
    describe=lambda row: f"accuracy {100 * row['accuracy']:.2f}%, {row['cpu_s']:.0f} s",
)
