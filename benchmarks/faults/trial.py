"""What happens when something breaks: real processes, real training, one row per fault.

Every part trains the same small network on Fashion-MNIST (:mod:`benchmarks.faults.training`), breaks one thing at
random moments, and then asks the run itself what it holds, and the weights whether the training felt anything.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.experiment import Experiment, option
from benchmarks.faults.disk import fill_disk
from benchmarks.faults.network import break_network
from benchmarks.faults.numbers import spoil_numbers
from benchmarks.faults.ranks import kill_ranks
from benchmarks.faults.training import Row
from benchmarks.tables.rows import latest, table

PARTS: Mapping[str, Callable[[Path, int], Iterable[Row]]] = {
    "kill": kill_ranks,
    "disk": fill_disk,
    "network": break_network,
    "numbers": spoil_numbers,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Some faults of one kind."""

    part: Literal["kill", "disk", "network", "numbers"] = "disk"
    times: int = option(3, help="how often each fault is tried")


def try_faults(settings: Settings) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="sgoif-faults-") as name:
        for row in PARTS[settings.part](Path(name), settings.times):
            yield {"settings": {"part": settings.part, "fault": row.fault}, **asdict(row)}


def faults() -> str:
    """One row per fault, as last tried."""
    rows = latest("faults.jsonl", key=lambda run: run["fault"])
    return table(("fault", "tried", "outcome"), ([run["fault"], str(run["tried"]), run["outcome"]] for run in rows))


FAULTS = Experiment(
    name="faults",
    settings=Settings,
    run=try_faults,
    tables={"faults": faults},
    describe=lambda row: f"{row['fault']}, {row['tried']} times: {row['outcome']}",
    summarise=lambda rows: f"faults_not_as_promised {sum(not row['met'] for row in rows)}",
    full=[{"part": "kill", "times": 30}, {"part": ["disk", "network", "numbers"]}],
    small={"part": "disk", "times": 1},
)
