"""What weights of examples are worth: ``python -m benchmarks.curriculum --settings pair-20,worst,clean --seeds 1``.

A ResNet-9 is trained from scratch on 20,000 CIFAR-10 images with labels as given, by each method of
:mod:`benchmarks.robust`, and tested on the 10,000 test images. Every method gets the same 20,000 labels; ours keeps 100
of each given class, as given, for its hold-out, and trains on the others. On the development set the last 4,000 images
are the test, with their true labels, and the others are trained on: nothing is chosen by test images.

One line per training in ``results/curriculum.jsonl``; those that are there already are passed over.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from benchmarks import data, loops, noise, robust
from benchmarks.records import append_result, is_recorded
from benchmarks.review import World

FILE = "curriculum.jsonl"
DEVELOPMENT_TEST = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One training; the defaults are tier M."""

    setting: str = "pair-20"
    method: str = "plain"
    split: str = "reported"
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
    held = np.isin(np.arange(len(given)), data.first_per_class(given, setup.held_per_class, images.num_classes))
    dataset = TensorDataset(data.normalise(images.pixels, *data.CIFAR10_STATS), torch.from_numpy(given))
    return World(dataset, given, images.labels, held, images.class_names), test


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
    models, told = robust.trained(setup.method, world, setup.epochs, setup.seed)
    spent = {"seconds": time.perf_counter() - started, "cpu_s": time.process_time() - cpu}
    by_class = np.mean([accuracies(model, test, loops.Recipe()) for model in models], axis=0)
    sizes = np.bincount(test.labels, minlength=test.num_classes)
    accuracy = float((by_class * sizes).sum() / sizes.sum())
    return {"accuracy": accuracy, "by_class": by_class.round(4).tolist(), **spent, **told}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", default="pair-20,worst,clean", help="comma-separated")
    parser.add_argument("--methods", nargs="+", choices=list(robust.METHODS), default=list(robust.METHODS))
    parser.add_argument("--seeds", default="1", help="comma-separated")
    parser.add_argument("--split", choices=["development", "reported"], default="reported")
    parser.add_argument("--examples", type=int, default=Setup().examples)
    parser.add_argument("--epochs", type=int, default=Setup().epochs)
    parser.add_argument("--dry", action="store_true", help="print, and append no result")
    options = parser.parse_args()
    for seed in map(int, options.seeds.split(",")):
        for setting in options.settings.split(","):
            for method in options.methods:
                where = {"split": options.split, "examples": options.examples, "epochs": options.epochs}
                setup = Setup(setting=setting, method=method, seed=seed, **where)
                settings = {name: value for name, value in asdict(setup).items() if name != "seed"}
                if not options.dry and is_recorded(FILE, settings, seed):
                    continue
                found = measure(setup)
                told = f"accuracy {100 * found['accuracy']:.2f}%, {found['cpu_s']:.0f} s"
                print(f"{setting}, seed {seed}, {method}: {told}", flush=True)
                if not options.dry:
                    append_result(FILE, {"benchmark": "curriculum", "settings": settings, "seed": seed, **found})


if __name__ == "__main__":
    main()
