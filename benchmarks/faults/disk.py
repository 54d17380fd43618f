"""A disk that is full: for a while, until the end, or from the start. A small tmpfs where we may mount one.

Elsewhere the kernel is told to refuse files beyond a size, which a writer cannot tell from a full disk.
"""

from __future__ import annotations

import resource
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.faults.training import Pictures, Row, Training, count_warnings, load_pictures, same_weights
from sgoif.run import Run

STEPS = 48  # in each third of a training
BATCH = 64
WAYS = ("for a while", "until the end", "from the start")
_REST_S = 1.0  # between giving up and trying again; a minute by default


class SmallDisk:
    """A folder on a disk that can be filled and freed."""

    def __init__(self, folder: Path, is_mounted: bool) -> None:
        self.folder, self.is_mounted = folder, is_mounted
        self._limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(self) -> None:
        """Take all the room that is left."""
        if not self.is_mounted:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1, self._limits[1]))
            return
        with suppress(OSError), (self.folder / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(b"\0" * 4096)

    def free(self) -> None:
        """Give it back."""
        resource.setrlimit(resource.RLIMIT_FSIZE, self._limits)
        (self.folder / "filler").unlink(missing_ok=True)


@contextmanager
def small_disk(folder: Path, size: str = "8m") -> Iterator[SmallDisk]:
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        is_mounted = subprocess.run(mount, capture_output=True).returncode == 0
    except FileNotFoundError:
        is_mounted = False
    disk = SmallDisk(folder, is_mounted)
    try:
        yield disk
    finally:
        disk.free()
        if is_mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill_disk(folder: Path, times: int = 3, ways: Sequence[str] = WAYS) -> list[Row]:
    """Fill the disk in each of some ways, and hold what is left against what was trained."""
    pictures = load_pictures()
    bare = Training(pictures, None, batch=BATCH)
    bare.steps(3 * STEPS)
    rows = []
    for when in ways:
        found = [_train(folder / f"{when}-{i}".replace(" ", "-"), pictures, bare, when) for i in range(times)]
        rows.append(_row(when, found))
    return rows


def _train(folder: Path, pictures: Pictures, bare: Training, when: str) -> dict[str, Any]:
    with small_disk(folder) as disk, count_warnings() as told:
        training = Training(pictures, {"out": str(folder / "run")}, batch=BATCH)
        if when == "from the start":
            disk.fill()
        training.steps(STEPS)
        training.monitor.state_dict()  # as a user's checkpoint does
        if when != "from the start":
            training.monitor.recorder.sink.opened.rest_s = _REST_S
        disk.fill()
        training.steps(STEPS)
        training.monitor.state_dict()
        if when == "for a while":
            disk.free()
            time.sleep(_REST_S)
        training.steps(STEPS)
        run: Run = training.monitor.close()
        written = len(run.visits.get("id", ())) if run.url else 0
        return {
            "same": same_weights(training.model, bare.model),
            "on_disk": written,
            "dropped": int(run.info["dropped_rows"]),
            "missing": 3 * STEPS * BATCH - written,
            "summed": int(np.sum(run.table["n_visits"])),
            "told": len(told),
            "from_disk": run.url is not None,
            "litter": len(list(folder.rglob(".*.tmp"))),
            "longest_step_s": max(training.step_s),
            "tmpfs": disk.is_mounted,
        }


def _row(when: str, found: list[dict[str, Any]]) -> Row:
    total = 3 * STEPS * BATCH
    sound = all(item["same"] and item["told"] == 1 and item["summed"] == total for item in found)
    sound &= all(item["litter"] == 0 and item["from_disk"] == (when == "for a while") for item in found)
    first = found[0]
    if when == "for a while":
        sound &= all(0 < item["missing"] <= min(item["dropped"], STEPS * BATCH) for item in found)
        where = f"{first['missing']:,} of {total:,} visits dropped and counted in run.json, writing went on"
    else:
        sound &= all(item["dropped"] > 0 for item in found)
        where = f"run.json cannot be written: the run that close() returns counts {first['dropped']:,} rows lost"
    outcome = f"{where}; every example's evidence whole, one warning, weights those of the bare training"
    return Row.of(f"disk full {when}", found, sound, outcome, visits=total)
