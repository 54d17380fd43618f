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
from benchmarks.frozen_noise import LABEL_FREE, aps, frozen_places
from benchmarks.label_noise_tables import PUBLISHED, best_free, is_judged, places, values
from benchmarks.metrics import best_other, detection_report
from benchmarks.tables.rows import describe_seeds, group_runs, latest, means, table

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
    """The twelve published noises: ours, rivals of the same training or features, confident learning's own; AP (P@1%).

    Where a run has no probabilities, its ranking is by the margin.
    """
    ours = {setting: runs for (_, setting, holdout), runs in places() if holdout == "as-given"}
    scans = {setting: runs for (setting, holdout), runs in frozen_places(PUBLISHED) if holdout == "as-given"}
    names, rows = ("self-confidence", "normalised margin"), []
    for (rate, sparsity), runs in group_runs(latest(EXPERIMENT.results), ("rate", "sparsity")):
        whole = next(run["report"] for run in runs if run["settings"]["images"] == "all")
        theirs = [f"{whole[name]['ap']:.1f} ({whole[name]['p@1%']:.0f})" for name in names]
        setting = f"cl-{rate}-{f'.{int(sparsity) // 10}' if int(sparsity) else '0'}"
        rows.append([setting, *_cells_of(ours.get(setting, [])), *_scanned(scans.get(setting, [])), *theirs])
    header = ("setting", "watched", "`p_mislabeled`", "`worst`", "best free rival")
    scanned = ("frozen features, `p_mislabeled`", "best rival on them")
    return table((*header, *scanned, *(f"confident learning, {name}" for name in names)), rows)


def _cells_of(runs: list[dict[str, Any]]) -> list[str]:
    if not runs:
        return ["not run", "", "", ""]
    signal = "p_mislabeled" if is_judged(runs) else "margin"
    rival, aps = best_free(runs)
    cells = [f"{means(values(runs, name))} ({np.mean(values(runs, name, 'p@1%')):.0f})" for name in (signal, "worst")]
    cells[0] += "" if is_judged(runs) else ", by margin: no probabilities"
    return [describe_seeds(runs), *cells, f"{means(aps)} ({rival})"]


def _scanned(runs: list[dict[str, Any]]) -> list[str]:
    if not runs:
        return ["not run", ""]
    rival = max((name for name in LABEL_FREE if aps(runs, name)), key=lambda name: np.mean(aps(runs, name)))
    precise = np.mean([run["report"]["p_mislabeled"]["p@1%"] for run in runs])
    is_judged = all(run["errors"]["expected"] is not None for run in runs)
    mine = f"{means(aps(runs, 'p_mislabeled'))} ({precise:.0f})" if is_judged else "no probabilities"
    return [mine, f"{means(aps(runs, rival))} ({rival})"]


_ALL = {"rate": (20, 40, 70), "sparsity": (0, 20, 40, 60)}

EXPERIMENT = Experiment(
    name="published",
    settings=Setup,
    run=measure,
    tables={"published": published},
    full=({**_ALL, "images": "all", "seed": 0}, {**_ALL, "images": "reported", "seed": (1, 2, 3)}),
    describe=lambda row: ", ".join(f"{name} AP {found['ap']:.1f}" for name, found in row["report"].items()),
)
