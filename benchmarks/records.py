"""Raw results as JSON lines: one line per measurement, never edited, from which the tables are made."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch

RESULTS = Path(__file__).resolve().parent / "results"


def append_result(path: str | Path, record: Mapping[str, Any]) -> dict[str, Any]:
    """Append one result, completed with commit, host and time, and return the line as written.

    The path lies under ``benchmarks/results``; the record must hold ``settings`` (what was run) and ``seed``.
    """
    missing = [key for key in ("settings", "seed") if key not in record]
    if missing:
        raise ValueError(f"a result needs {' and '.join(missing)}, so that it can be repeated")
    added = {"commit": commit(), "host": host(), "time": datetime.now(timezone.utc).isoformat(timespec="seconds")}
    taken = sorted(added.keys() & record.keys())
    if taken:
        raise ValueError(f"{', '.join(taken)} is filled in here; give the measurement another name")
    line = json.dumps({**record, **added}, allow_nan=False, sort_keys=True, default=_plain)
    target = RESULTS / path
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("a") as file:
        file.write(line + "\n")  # one write, so that two processes do not mix their lines
    written: dict[str, Any] = json.loads(line)
    return written


def read_results(path: str | Path) -> list[dict[str, Any]]:
    """Read all results of a file, oldest first."""
    return [json.loads(line) for line in (RESULTS / path).read_text().splitlines() if line]


def is_recorded(path: str | Path, settings: Mapping[str, Any], seed: int) -> bool:
    """Whether a file holds a result of these settings and seed already, so that a stopped run goes on where it was."""
    if not (RESULTS / path).is_file():
        return False
    return any(row["settings"] == settings and row["seed"] == seed for row in read_results(path))


def commit() -> str:
    """Name the commit of the checkout, with ``-dirty`` where tracked files differ from it, or ``unknown``."""
    try:
        name = _git("rev-parse", "--short=12", "HEAD")
        # new results are what a run leaves behind, and do not change what was run
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks/results")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{name}-dirty" if changed else name


def host() -> dict[str, Any]:
    """Describe the machine by what bears on the numbers; no names, no paths."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _git(*arguments: str) -> str:
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(
        ["git", "--no-optional-locks", *arguments], cwd=root, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray | torch.Tensor):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
