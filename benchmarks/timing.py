"""Time and memory of variants of the same work, measured so that a drifting machine favours none of them.

Time: all variants run in one process, in blocks, forward and backward in turn (A B B A for two), so that a slow drift
of the machine falls on each alike. Memory: one process per variant, since a peak cannot be lowered again.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from sgoif.overhead import Ratio, Timings, alternate

__all__ = ["Ratio", "Timings", "alternate", "peak_rss_mb", "run_probe"]


def peak_rss_mb(module: str, name: str, timeout_s: float = 600) -> float:
    """Measure by how much a probe raises the peak resident memory of a fresh process, in MiB.

    Runs ``python -m MODULE --probe NAME`` from the root of the checkout; the module hands its probes to
    :func:`run_probe`.
    """
    command = [sys.executable, "-m", module, "--probe", name]
    root = Path(__file__).resolve().parents[1]
    paths = [str(root / "src"), os.environ.get("PYTHONPATH", "")]  # the probe measures this checkout
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=timeout_s, env=environment)
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
