"""A sink that joins its run only when the first rows come, when it is known whether the run is resumed.

An attempt that starts at step 0 supersedes all that earlier attempts wrote. A monitor that is about to load a
checkpoint must not say so; so the folder is looked at when the sink is made, and written to when training starts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from numpy.typing import ArrayLike

from sgoif.records import ScoreBatch
from sgoif.store.info import find_info
from sgoif.store.places import place_of
from sgoif.store.writer import KeepVisits, ParquetSink

__all__ = ["DeferredSink"]


class DeferredSink:
    """A :class:`ParquetSink` that opens with the first rows.

    Args:
        url: the run's folder; refused here where it holds something else.
        rank: of this process.
        attempt: as :class:`ParquetSink` has it.
        keep_visits: as :class:`ParquetSink` has it.
        facts: about the run.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        rank: int = 0,
        attempt: int | None = None,
        keep_visits: KeepVisits = "all",
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.url, self.rank, self.attempt, self.keep_visits = str(url), rank, attempt, keep_visits
        self._facts, self._start_step = dict(facts or {}), 0
        self._opened: ParquetSink | None = None
        find_info(place_of(url))

    @property
    def opened(self) -> ParquetSink:
        """The sink itself; the run has begun once it was asked for."""
        if self._opened is None:
            self._opened = ParquetSink(
                self.url,
                self.rank,
                self.attempt,
                start_step=self._start_step,
                keep_visits=self.keep_visits,
                facts=self._facts,
            )
        return self._opened

    @property
    def is_sound(self) -> bool:
        """Whether everything was written."""
        return not self.opened.faults and not self.opened.dropped_rows

    def resume(self, step: int) -> None:
        """Say that the run goes on from a step: what was written from there on is superseded."""
        self._start_step = step

    def write(self, batch: ScoreBatch) -> None:
        """Take one step's visits."""
        self.opened.write(batch)

    def write_table(self, name: str, columns: Mapping[str, ArrayLike]) -> None:
        """Take rows of another table."""
        self.opened.write_table(name, columns)

    def write_info(self, facts: Mapping[str, Any]) -> None:
        """Add facts about the run."""
        self.opened.write_info(facts)

    def checkpoint(self) -> dict[str, Any]:
        """Make everything so far visible."""
        return self.opened.checkpoint() if self._opened is not None else {}

    def close(self) -> None:
        """Write what is left; a run without rows is written too."""
        self.opened.close()
