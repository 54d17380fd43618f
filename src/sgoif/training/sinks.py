"""Where scores go. Training emits :class:`ScoreBatch` and never hears of files."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sgoif.records import ScoreBatch

__all__ = ["MemorySink", "ScoreSink"]


class ScoreSink(Protocol):
    """Anything that takes visits, step after step, and is closed once."""

    def write(self, batch: ScoreBatch) -> None:
        """Take one step's visits."""

    def close(self) -> None:
        """No more will come."""


class MemorySink:
    """Keeps every visit in memory: for notebooks, tests and small runs."""

    def __init__(self) -> None:
        self._batches: list[ScoreBatch] = []

    def write(self, batch: ScoreBatch) -> None:
        self._batches.append(batch)

    def close(self) -> None:
        pass

    def table(self) -> dict[str, NDArray[Any]]:
        """All visits as columns, in the order of writing."""
        if not self._batches:
            return {}
        batches = self._batches
        sizes = [len(batch.ids) for batch in batches]
        columns: dict[str, NDArray[Any]] = {"id": np.concatenate([batch.ids for batch in batches])}
        for name in ("attempt", "step", "epoch", "rank", "micro_step"):
            columns[name] = np.repeat(np.array([getattr(batch, name) for batch in batches]), sizes)
        columns["given_label"] = np.concatenate([batch.given_labels for batch in batches])
        for name in batches[0].columns:
            columns[name] = np.concatenate([batch.columns[name] for batch in batches])
        return columns
