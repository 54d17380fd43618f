"""The run of a scan: where it goes, and how its tables are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sgoif.evidence import Sketches
from sgoif.finish import save_run
from sgoif.run import Run
from sgoif.scanning import Progress, no_progress
from sgoif.scanning.issues import IssueFinder
from sgoif.training.sinks import ScoreSink
from sgoif.types import Columns

__all__ = ["ScanRun"]


@dataclass(frozen=True, slots=True)
class ScanRun:
    """Where the run of a scan goes, and what it says besides its judgement of labels."""

    sink: ScoreSink | None = None  # None keeps it in memory
    facts: Mapping[str, Any] = field(default_factory=dict)  # for its information
    sketches: Sketches | None = None  # by which duplicates are found
    progress: Progress = no_progress  # called with the stage, what is done, and the total
    issues: IssueFinder | None = None  # checks the data as a whole

    def save(self, facts: Mapping[str, Any], examples: Columns, **tables: Columns) -> Run:
        """Write one row per example, with its sketch, and further tables; ``facts`` join those of the scan."""
        known: dict[str, Any] = {"kind": "scan", **self.facts, **facts, "num_examples": len(examples["id"])}
        if self.sketches is not None:
            examples = examples | self.sketches.columns(examples["id"])
            known["nearly_same"] = self.sketches.nearly_same
        return save_run(self.sink, known, {"examples": examples, **tables})
