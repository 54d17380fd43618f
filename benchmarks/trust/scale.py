"""Cost at scale.

Made features, drawn in blocks: a Gaussian cloud per class, 5% of the labels replaced at random. Measures the CPU
seconds of ``benchmarks.trust.ours.find`` on one thread, and the peak memory of the process, features included. Run it
at several sizes to see how the cost grows, the smallest first, because a peak never falls.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.experiment import Experiment
from benchmarks.metrics import average_precision
from benchmarks.trust import ours, tables

RATE = 0.05
APART = 0.25  # of the class means, in standard deviations of the cloud per feature
BLOCK = 10_000


def make(
    num_examples: int, num_features: int, num_classes: int, seed: int
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    """Draw features, true labels and given labels; nothing larger than the features is held."""
    rng = np.random.default_rng(seed)
    means = (APART * rng.standard_normal((num_classes, num_features))).astype(np.float32)
    true = rng.integers(num_classes, size=num_examples)
    true[:num_classes] = np.arange(num_classes)[:num_examples]  # every class is there
    rows = np.empty((num_examples, num_features), np.float32)
    for start in range(0, num_examples, BLOCK):
        part = slice(start, start + BLOCK)
        rng.standard_normal(out=rows[part], dtype=np.float32)
        rows[part] += means[true[part]]
    moved = rng.random(num_examples) < RATE
    given = np.where(moved, (true + rng.integers(1, num_classes, size=num_examples)) % num_classes, true)
    return rows, true, given


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One size; ``method`` names what is measured."""

    examples: int = 100_000
    features: int = 512
    classes: int = 1_000
    method: str = tables.NEW
    seed: int = 1


def measure(setup: Setup) -> dict[str, Any]:
    """Run our method once; the peak is that of the whole process so far."""
    rows, true, given = make(setup.examples, setup.features, setup.classes, setup.seed)
    before, started = _peak_gb(), perf_counter()
    found = ours.find(rows, given, setup.classes, setup.seed)
    report = {
        "cpu_s": round(found.seconds, 1),
        "wall_s": round(perf_counter() - started, 1),
        "peak_gb": round(_peak_gb(), 2),
        "peak_before_gb": round(before, 2),
        "ap": 100 * average_precision(found.score, given != true),
        "total": found.total,
        "errors": int((given != true).sum()),
        "reason": found.reason,
    }
    return {"report": report}


def _peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9  # Linux counts kilobytes


EXPERIMENT = Experiment(
    name="trust_scale",
    settings=Setup,
    run=measure,
    tables={"trust_scale": tables.scale},
    file=tables.SCALE_FILE,
    full={"examples": (100_000, 1_000_000)},
    describe=lambda row: str(row["report"]),
)
