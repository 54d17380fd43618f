"""Confident learning from its own published probabilities, on our images: ``python -m benchmarks.published``.

The confident-learning study released its noisy CIFAR-10 labels and the out-of-sample probabilities of a ResNet-50
trained four times on all 50,000 images. Their scores need no training here, so they are an anchor from outside: on the
whole set, and on the very images that our watched trainings of the same setting and seed had.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import data
from benchmarks.metrics import detection_report
from benchmarks.records import append_result, is_recorded

FILE = "published.jsonl"
RATES, SPARSITIES = (20, 40, 70), (0, 20, 40, 60)
Floats = NDArray[np.float64]


def scores(probabilities: Floats, given: NDArray[np.int64]) -> dict[str, Floats]:
    """Rank by the given label's probability, and by how far the best other class is above it; high is suspicious."""
    rows = np.arange(len(given))
    own = probabilities[rows, given]
    others = probabilities.copy()
    others[rows, given] = -np.inf
    return {"self-confidence": -own, "normalised margin": others.max(1) - own}


def measure(rate: int, sparsity: int, seed: int | None) -> dict[str, Any]:
    """Report both rankings, over all images or over those of a seed."""
    images = data.cifar10("train")
    given = data.class_conditional_labels(rate, sparsity)
    probabilities = data.confident_learning_probabilities(rate, sparsity)
    rows = np.arange(len(given)) if seed is None else data.reported(seed=seed).train.ids
    wrong = given[rows] != images.labels[rows]
    return {name: detection_report(found, wrong) for name, found in scores(probabilities[rows], given[rows]).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="1,2,3", help="comma-separated, beside the whole set")
    options = parser.parse_args()
    for rate in RATES:
        for sparsity in SPARSITIES:
            for seed in (None, *map(int, options.seeds.split(","))):
                settings = {"rate": rate, "sparsity": sparsity, "images": "all" if seed is None else "reported"}
                if is_recorded(FILE, settings, seed or 0):
                    continue
                found = measure(rate, sparsity, seed)
                append_result(
                    FILE, {"benchmark": "published", "settings": settings, "seed": seed or 0, "report": found}
                )
                said = ", ".join(f"{name} AP {row['ap']:.1f}, P@1% {row['p@1%']:.1f}" for name, row in found.items())
                print(f"{rate}%, sparsity {sparsity}%, {settings['images']}, seed {seed}: {said}", flush=True)


if __name__ == "__main__":
    main()
