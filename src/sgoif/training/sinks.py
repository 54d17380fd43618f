"""Where scores go. Training emits :class:`ScoreBatch` and never hears of files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from sgoif.records import ScoreBatch

__all__ = ["KeepVisits", "MemorySink", "ScoreSink"]

KeepVisits = Literal["all", "last", "none"]


class ScoreSink(Protocol):
    """Anything that takes visits, step after step, and is closed once.

    Where it has ``checkpoint()`` and ``resume(step)``, these are called when the monitor's state is saved and loaded.
    """

    def write(self, batch: ScoreBatch) -> None:
        """Take one step's visits."""

    def write_table(self, name: str, columns: Mapping[str, NDArray[Any]]) -> None:
        """Take rows of another table: what anchors, canaries and the hold-out showed."""

    def close(self) -> None:
        """No more will come."""


class MemorySink:
    """Keeps every visit in memory: for notebooks, tests and small runs."""

    def __init__(self) -> None:
        self._batches: list[ScoreBatch] = []
        self._others: dict[str, list[Mapping[str, NDArray[Any]]]] = {}

    def write(self, batch: ScoreBatch) -> None:
        self._batches.append(batch)

    def write_table(self, name: str, columns: Mapping[str, NDArray[Any]]) -> None:
        self._others.setdefault(name, []).append(columns)

    def close(self) -> None:
        pass

    def tables(self) -> dict[str, dict[str, NDArray[Any]]]:
        """All tables but visits, as columns in the order of writing."""
        return {
            name: {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
            for name, parts in self._others.items()
        }

    def visits(self) -> dict[str, NDArray[Any]]:
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
