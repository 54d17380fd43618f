"""What a scan costs: of a large table, in time and memory; and of pictures whose embeddings are kept, the second time.

Numbers are a CSV of Gaussian classes, 2% of its labels wrong. Pictures are CIFAR-10's, as PNG files in class folders,
embedded by EfficientNet-Lite0 at its own 224 pixels. Every scan is the command line in a process of its own, with one
thread, and cost is CPU time: other programs on the machine do not change it much.
"""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

import sgoif
from benchmarks.experiment import FROZEN, Experiment
from benchmarks.metrics import average_precision
from benchmarks.scan import write_folder
from benchmarks.tables.rows import latest, table
from benchmarks.timing import run_command

_CLASSES, _COLUMNS, _WRONG, _APART = 10, 12, 0.02, 1.6
_AT_ONCE = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One dataset, scanned once or twice."""

    kind: Literal["numbers", "pictures"] = "numbers"
    examples: int = 1_000_000
    seed: int = 1


def write_numbers(path: Path, examples: int, seed: int) -> set[str]:
    """Write a CSV of Gaussian classes, block by block; the ids of its wrong labels."""
    rng = np.random.default_rng(seed)
    centres = _APART * rng.normal(size=(_CLASSES, _COLUMNS))
    wrong = set[str]()
    with path.open("w") as file:
        file.write(",".join(["id", "label", *(f"x{i}" for i in range(_COLUMNS))]) + "\n")
        for first in range(0, examples, _AT_ONCE):
            count = min(_AT_ONCE, examples - first)
            true = rng.integers(_CLASSES, size=count)
            rows = centres[true] + rng.normal(size=(count, _COLUMNS))
            is_wrong = rng.random(count) < _WRONG
            given = np.where(is_wrong, (true + rng.integers(1, _CLASSES, size=count)) % _CLASSES, true)
            names = [f"r{first + i}" for i in range(count)]
            wrong.update(name for name, bad in zip(names, is_wrong.tolist(), strict=True) if bad)
            for name, label, row in zip(names, given.tolist(), rows.tolist(), strict=True):
                file.write(f"{name},class {label},{','.join(f'{value:.4f}' for value in row)}\n")
    return wrong


def scan(source: Path, out: Path, *options: str) -> dict[str, float]:
    """Scan by the command line: CPU and wall seconds, and the peak of its memory in MiB."""
    command = [sys.executable, "-m", "sgoif.cli.main", "scan", str(source), "--out", str(out), *options]
    return run_command(command, Path(__file__).resolve().parents[1], os.environ)  # where the backbone is found


def measure(settings: Settings) -> dict[str, Any]:
    """Write the data, scan it, and compare with the truth; pictures are scanned twice."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        if settings.kind == "numbers":
            wrong = write_numbers(place / "rows.csv", settings.examples, settings.seed)
            size = (place / "rows.csv").stat().st_size / 2**20
            found: dict[str, Any] = {"data_mb": size, "first": scan(place / "rows.csv", place / "run")}
        else:
            truth = write_folder(place / "photos", "sym-5", settings.seed, settings.examples)
            wrong = {name for name, is_wrong in truth.items() if is_wrong}
            options = ("--backbone", "benchmarks.frozen:full_size_backbone")
            found = {"first": scan(place / "photos", place / "run", *options)}
            found["second"] = scan(place / "photos", place / "again", *options)
            found["ratio"] = found["second"]["cpu_seconds"] / found["first"]["cpu_seconds"]
        run = sgoif.load(place / "run")
        hits = np.array([name in wrong for name in run.label_issues()["id"].to_pylist()])
        summary = run.summary()
        assert hits.sum() == len(wrong)
        return found | {
            "ap": 100 * average_precision(-np.arange(len(hits)), hits),
            "expected_errors": run.info.get("expected_errors"),
            "true_errors": len(wrong),
            "num_examples": summary.num_examples,
        }


def scan_cost_table() -> str:
    """What each scan cost."""
    rows = []
    for run in latest("scan_cost.jsonl"):
        second = run.get("second")
        again = "" if second is None else f"{second['cpu_seconds']:.0f} ({run['ratio']:.2f})"
        rows.append(
            [
                f"{run['settings']['kind']}, {run['num_examples']:,}",
                f"{run['first']['cpu_seconds']:.0f}",
                again,
                f"{run['first']['peak_mb']:,.0f}",
                f"{run['ap']:.1f}",
            ]
        )
    return table(("examples", "CPU seconds", "again, of the first", "peak MiB", "AP"), rows)


SCAN_COST = Experiment(
    name="scan_cost",
    settings=Settings,
    run=measure,
    tables={"scan_cost": scan_cost_table},
    full=(
        {"kind": "numbers", "examples": [100_000, 1_000_000]},
        {"kind": "pictures", "examples": 3_000},
    ),
    small={"kind": "numbers", "examples": 2_000},
    needs=FROZEN,
)
