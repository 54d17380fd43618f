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
    """Takes visits, step after step, and is closed once."""

    @property
    def url(self) -> str | None:
        """Where the run is written to; None for memory."""

    @property
    def keep_visits(self) -> KeepVisits:
        """Which visits can be read when the run is finished."""

    def check_folder(self) -> None:
        """Refuse a folder that holds another run; called before the first step is scored."""

    def resume(self, step: int) -> None:
        """Continue from a step: what was written from there on is superseded."""

    def write(self, batch: ScoreBatch) -> None:
        """Take one step's visits."""

    def write_table(self, name: str, columns: Mapping[str, NDArray[Any]]) -> None:
        """Take rows of another table: what anchors, canaries and the hold-out showed."""

    def write_info(self, facts: Mapping[str, Any]) -> None:
        """Take facts about the run."""

    def checkpoint(self) -> object:
        """Make everything so far readable; called when the monitor's state is saved."""

    def end(self, timeout_s: float) -> None:
        """Make everything so far readable, because the process ends without :meth:`close`."""

    def close(self) -> None:
        """Finish the run."""


class MemorySink:
    """Keeps every visit in memory: for notebooks, tests and small runs."""

    url: str | None = None
    keep_visits: KeepVisits = "all"

    def __init__(self) -> None:
        self._batches: list[ScoreBatch] = []
        self._others: dict[str, list[Mapping[str, NDArray[Any]]]] = {}

    def write(self, batch: ScoreBatch) -> None:
        self._batches.append(batch)

    def write_table(self, name: str, columns: Mapping[str, NDArray[Any]]) -> None:
        self._others.setdefault(name, []).append(columns)

    def _skip(self, *_: Any, **__: Any) -> None:
        """Memory holds no other run, and all of it is readable until the process ends."""

    check_folder = resume = write_info = checkpoint = end = close = _skip

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
