"""``sgoif scan`` as a new user runs it.

5,000 CIFAR-10 images outside development, 20% of their labels flipped between look-alike classes, written as PNG files
into one folder per given class. The command line is called with the folder and a frozen backbone; of its first 100
findings so many are true errors, and it took so long.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import sgoif
from benchmarks import data, noise
from benchmarks.experiment import Experiment, option
from benchmarks.metrics import average_precision
from benchmarks.tables.rows import latest, table

TOP = 100
_NOT_A_NEW_USERS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONPATH")
BACKBONE = ["--backbone", "benchmarks.frozen:backbone"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One folder."""

    setting: str = "pair-20"
    examples: int = 5_000
    seed: int = 1
    python: str = option(sys.executable, help="of an environment that has sgoif installed")
    threads: int | None = option(None, help="of the scan; as many as there are cores by default")


def write_folder(folder: Path, setting: str, seed: int, examples: int) -> dict[str, bool]:
    """Write the pictures, and tell which paths hold a wrong label."""
    images = data.reported(examples, seed).train
    given = noise.apply(setting, images.labels, seed=seed, ids=images.ids)
    wrong = {}
    for pixels, true, label, number in zip(images.pixels, images.labels, given, images.ids, strict=True):
        name = f"{images.class_names[label]}/{number:05d}.png"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / name)
        wrong[name] = bool(true != label)
    return wrong


def scan(folder: Path, out: Path, settings: Settings) -> float:
    """Run the command line in a process of its own; returns the seconds it took."""
    environment = {key: value for key, value in os.environ.items() if key not in _NOT_A_NEW_USERS}
    if settings.threads is not None:
        environment["OMP_NUM_THREADS"] = str(settings.threads)
    started = time.perf_counter()
    subprocess.run(
        [settings.python, "-m", "sgoif.cli.main", "scan", str(folder), "--out", str(out), *BACKBONE],
        check=True,
        cwd=Path(__file__).resolve().parents[1],  # where the backbone is found
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return time.perf_counter() - started


def examine(settings: Settings) -> dict[str, Any]:
    """Write, scan, and compare with the truth."""
    with tempfile.TemporaryDirectory() as place:
        wrong = write_folder(Path(place) / "photos", settings.setting, settings.seed, settings.examples)
        seconds = scan(Path(place) / "photos", Path(place) / "run", settings)
        run = sgoif.load(Path(place) / "run")
        table = run.label_issues().to_pydict()
        hits = np.array([wrong[name] for name in table["id"]])  # most suspicious first
        return {
            "seconds": seconds,
            "top_100": int(hits[:TOP].sum()),
            "ap": 100 * average_precision(-np.arange(len(hits)), hits),
            "expected_errors": run.info.get("expected_errors"),
            "true_errors": int(hits.sum()),
            "num_duplicates": len(run.duplicates()),
        }


def scan_table() -> str:
    """True errors among the first 100 of ``sgoif scan``, one line per run."""
    rows = [
        [str(run["seed"]), str(run["top_100"]), f"{run['ap']:.1f}", f"{run['seconds']:.0f}"]
        for run in latest("scan.jsonl")
        if run["settings"].get("path", "frozen") == "frozen"  # those without a backbone trained a network
    ]
    return table(("seed", "of the first 100", "AP", "seconds"), rows)


SCAN = Experiment(
    name="scan",
    settings=Settings,
    run=examine,
    tables={"scan": scan_table},
    unrecorded=("seed", "python", "threads"),
    full={"seed": [1, 2, 3]},
    small={"examples": 300, "threads": 1},
)
