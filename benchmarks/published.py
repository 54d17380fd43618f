"""Confident learning from its own published probabilities, on our images.

The confident-learning study released its noisy CIFAR-10 labels and the out-of-sample probabilities of a ResNet-50
trained four times on all 50,000 images. Their scores need no training here, so they are an anchor from outside: on the
whole set, and on the very images that our watched trainings of the same setting and seed had.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks import data
from benchmarks.experiment import Experiment, option
from benchmarks.label_noise_tables import places, values
from benchmarks.metrics import best_other, detection_report
from benchmarks.tables.rows import group_runs, latest, means, table

Floats = NDArray[np.float64]


def scores(probabilities: Floats, given: NDArray[np.int64]) -> dict[str, Floats]:
    """Rank by the given label's probability, and by how far the best other class is above it; high is suspicious."""
    own = probabilities[np.arange(len(given)), given]
    return {"self-confidence": -own, "normalised margin": best_other(probabilities, given) - own}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One set of published labels, over all images or over those of a seed."""

    rate: int = option(20, (20, 40, 70))
    sparsity: int = option(0, (0, 20, 40, 60))
    images: Literal["all", "reported"] = "all"
    seed: int = 0


def measure(setup: Setup) -> dict[str, Any]:
    """Report both rankings."""
    images, given = data.cifar10("train"), data.class_conditional_labels(setup.rate, setup.sparsity)
    probabilities = data.confident_learning_probabilities(setup.rate, setup.sparsity)
    rows = np.arange(len(given)) if setup.images == "all" else data.reported(seed=setup.seed).train.ids
    wrong = given[rows] != images.labels[rows]
    found = scores(probabilities[rows], given[rows])
    return {"report": {name: detection_report(values, wrong) for name, values in found.items()}}


def published() -> str:
    """AP and P@1% of confident learning by its own published probabilities, beside ours where we trained."""
    ours = {setting: runs for (_, setting, holdout), runs in places() if holdout == "as-given"}
    names, rows = ("self-confidence", "normalised margin"), []
    for (rate, sparsity), runs in group_runs(latest(EXPERIMENT.results), ("rate", "sparsity")):
        whole = next(run["report"] for run in runs if run["settings"]["images"] == "all")
        cells = [f"{whole[name]['ap']:.1f} ({whole[name]['p@1%']:.0f})" for name in names]
        setting = f"cl-{rate}-{f'.{int(sparsity) // 10}' if int(sparsity) else '0'}"
        mine = means(values(ours[setting], "p_mislabeled")) if setting in ours else ""
        rows.append([setting, *cells, mine])
    return table(("setting", *(f"{name}: AP (P@1%)" for name in names), "`p_mislabeled`, as given, tier M"), rows)


_ALL = {"rate": (20, 40, 70), "sparsity": (0, 20, 40, 60)}

EXPERIMENT = Experiment(
    name="published",
    settings=Setup,
    run=measure,
    tables={"published": published},
    full=({**_ALL, "images": "all", "seed": 0}, {**_ALL, "images": "reported", "seed": (1, 2, 3)}),
    describe=lambda row: ", ".join(f"{name} AP {found['ap']:.1f}" for name, found in row["report"].items()),
)
