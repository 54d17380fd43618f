"""Time and memory of variants of the same work, measured so that a drifting machine favours none of them.

Time: all variants run in one process, in blocks, forward and backward in turn (A B B A for two), so that a slow drift
of the machine falls on each alike. Memory: one process per variant, since a peak cannot be lowered again.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["Ratio", "Timings", "alternate", "peak_rss_mb", "run_probe"]

NUM_RESAMPLES = 10_000


@dataclass(frozen=True, slots=True)
class Ratio:
    """A time divided by that of the first variant, with a bootstrap 95% interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f}x [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds per step of every variant in every round."""

    names: tuple[str, ...]  # the first one is the baseline
    seconds: NDArray[np.float64]  # [R, V] rounds by variants

    def median_s(self, name: str) -> float:
        """Give the median seconds per step of a variant."""
        return float(np.median(self.seconds[:, self.names.index(name)]))

    def ratio(self, name: str) -> Ratio:
        """Divide a variant by the baseline round by round, and take the median.

        The interval is the percentile bootstrap over rounds. With few rounds it is narrower than the truth.
        """
        paired = self.seconds[:, self.names.index(name)] / self.seconds[:, 0]
        draws = np.random.default_rng(0).integers(0, len(paired), (NUM_RESAMPLES, len(paired)))
        low, high = np.quantile(np.median(paired[draws], axis=1), [0.025, 0.975])
        return Ratio(float(np.median(paired)), float(low), float(high))

    def summary(self) -> dict[str, dict[str, float]]:
        """Collect medians and ratios of all variants in plain numbers, for the raw results."""
        rows = {}
        for name in self.names:
            ratio = self.ratio(name)
            rows[name] = {
                "median_s": self.median_s(name),
                "ratio": ratio.value,
                "ratio_low": ratio.low,
                "ratio_high": ratio.high,
            }
        return rows


def alternate(
    variants: Mapping[str, Callable[[], None]],
    blocks: int = 10,
    steps_per_block: int = 50,
    warmup: int = 10,
    clock: Callable[[], float] = time.perf_counter,
) -> Timings:
    """Time variants in interleaved blocks: each round runs all of them forward, then all of them backward.

    A variant's time in a round is the mean over its two blocks, which cancels a linear drift within the round.

    Args:
        variants: Name to a function that does one step; the first is the baseline.
        blocks: Blocks per variant; even, since a round has two.
        steps_per_block: Steps in a block.
        warmup: Steps of each variant before the clock starts.
        clock: Reads the time in seconds.
    """
    if blocks < 2 or blocks % 2:
        raise ValueError(f"blocks must be even and positive, since every round has two of each variant, got {blocks}")
    if not variants or steps_per_block < 1:
        raise ValueError("nothing to time: pass at least one variant and one step per block")
    names = tuple(variants)
    for step in variants.values():
        for _ in range(warmup):
            step()
    seconds = np.zeros((blocks // 2, len(names)))
    for round_index in range(blocks // 2):
        gc.collect()  # so that no variant pays for the garbage of an earlier round
        for position in (*range(len(names)), *reversed(range(len(names)))):
            step = variants[names[position]]
            start = clock()
            for _ in range(steps_per_block):
                step()
            seconds[round_index, position] += (clock() - start) / (2 * steps_per_block)
    return Timings(names, seconds)


def peak_rss_mb(module: str, name: str, timeout_s: float = 600) -> float:
    """Measure by how much a probe raises the peak resident memory of a fresh process, in MiB.

    Runs ``python -m MODULE --probe NAME`` from the root of the checkout; the module hands its probes to
    :func:`run_probe`.
    """
    command = [sys.executable, "-m", module, "--probe", name]
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=timeout_s)
    if done.returncode != 0:
        raise RuntimeError(f"probe {name!r} of {module} failed with exit code {done.returncode}:\n{done.stderr}")
    reading = json.loads(done.stdout.splitlines()[-1])
    return float(reading["peak_mb"] - reading["baseline_mb"])


def run_probe(probes: Mapping[str, Callable[[], None]], arguments: list[str] | None = None) -> None:
    """Run the probe that ``--probe`` names, and print the peak before (imports only) and after it as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--probe", required=True, choices=sorted(probes))
    name = parser.parse_args(arguments).probe
    baseline = _peak_mb()
    probes[name]()
    print(json.dumps({"probe": name, "baseline_mb": baseline, "peak_mb": _peak_mb()}))


def _peak_mb() -> float:
    # On Linux ru_maxrss of a fresh process starts at the memory of the process that launched it, so a large parent
    # hides the child's growth. VmHWM is the same peak, counted from the start of the program.
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 1024
