"""Cost at scale: ``python -m benchmarks.trust.scale --examples 1000000 --features 512 --classes 1000``.

Made features, drawn in blocks: a Gaussian cloud per class, 5% of the labels replaced at random. Measures the CPU
seconds of ``benchmarks.trust.ours.find`` on one thread, and the peak memory of the process, features included. Run it
at several sizes to see how the cost grows; one size per process, because a peak never falls.
"""

from __future__ import annotations

import argparse
import resource
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.metrics import average_precision
from benchmarks.records import append_result
from benchmarks.trust import ours

__all__ = ["make", "measure"]

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


def measure(num_examples: int, num_features: int, num_classes: int, seed: int = 1) -> dict[str, Any]:
    """Run our method once; the peak is that of the whole process so far."""
    torch.set_num_threads(1)
    rows, true, given = make(num_examples, num_features, num_classes, seed)
    before, started = _peak_gb(), perf_counter()
    found = ours.find(rows, given, num_classes, seed)
    return {
        "cpu_s": round(found.seconds, 1),
        "wall_s": round(perf_counter() - started, 1),
        "peak_gb": round(_peak_gb(), 2),
        "peak_before_gb": round(before, 2),
        "ap": 100 * average_precision(found.score, given != true),
        "total": found.total,
        "errors": int((given != true).sum()),
        "reason": found.reason,
    }


def _peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9  # Linux counts kilobytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=100_000)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--classes", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--method", default="today", help="name of what is measured, kept in the result")
    parser.add_argument("--save", metavar="FILE")
    options = parser.parse_args()
    report = measure(options.examples, options.features, options.classes, options.seed)
    print(report)
    if options.save:
        names = ("examples", "features", "classes", "method")
        settings = {name: getattr(options, name) for name in names}
        append_result(
            options.save, {"benchmark": "trust_scale", "settings": settings, "seed": options.seed, "report": report}
        )


if __name__ == "__main__":
    main()
