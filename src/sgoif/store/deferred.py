"""A sink that joins its run only when the first rows come, when it is known whether the run is resumed.

An attempt that starts at step 0 supersedes all that earlier attempts wrote. A monitor that is about to load a
checkpoint must not say so; so the folder is looked at when the sink is made, and written to when training starts. A
folder that holds another run is refused on the first step, see :mod:`sgoif.store.holding`. A run that cannot be joined
for another reason is tried again later: visits until then are dropped and counted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from sgoif.errors import StoreError
from sgoif.files.locations import place_of
from sgoif.records import ScoreBatch
from sgoif.store.holding import refusal_of
from sgoif.store.info import find_info
from sgoif.store.write_errors import WriteErrors
from sgoif.store.writer import KeepVisits, ParquetSink

__all__ = ["DeferredSink"]

_REST_S = 60.0  # joining a run waits for its disk or network, which the training may feel once a minute


class DeferredSink:
    """A :class:`ParquetSink` that opens with the first rows.

    Args:
        url: the run's folder; refused here where it holds something else.
        rank: of this process.
        attempt: as :class:`ParquetSink` has it.
        keep_visits: as :class:`ParquetSink` has it.
        facts: about the run.
        overwrite: delete the run that the folder holds when this one begins, unless it is resumed.
        refusal: why nothing may be written unless the run is resumed, as rank 0 found; by default this process looks.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        rank: int = 0,
        attempt: int | None = None,
        keep_visits: KeepVisits = "all",
        facts: Mapping[str, Any] | None = None,
        overwrite: bool = False,
        refusal: str | None = None,
    ) -> None:
        self.overwrite, self.refusal, self._is_resumed = overwrite, refusal, False
        self.url, self.rank, self.attempt, self.keep_visits = str(url), rank, attempt, keep_visits
        self.trouble = WriteErrors()
        self._facts, self._start_step = dict(facts or {}), 0
        self._opened: ParquetSink | None = None
        self._resting_until = 0.0
        find_info(place_of(url))
        # Arrow imports pandas with the first array. Here, because a SIGTERM that meets the training in that import lets
        # the writing thread wait for it, and the visits are lost.
        pa.array(np.zeros(1))

    @property
    def opened(self) -> ParquetSink:
        """The sink itself; the run has begun once it was asked for."""
        if self._opened is None:
            self.check_folder()
            self._opened = ParquetSink(
                self.url,
                self.rank,
                self.attempt,
                start_step=self._start_step,
                keep_visits=self.keep_visits,
                facts=self._facts,
                trouble=self.trouble,
                overwrite=self.overwrite and not self._is_resumed,
            )
        return self._opened

    def check_folder(self) -> None:
        """Refuse a folder that holds another run; called before the first step is scored.

        Raises:
            StoreError: It does, and this run neither resumes nor overwrites it; or the folder cannot be read.
        """
        if self._opened is not None or self._is_resumed or self.overwrite:
            return
        if self.attempt is None:  # else several processes write the run, and rank 0 has looked for all of them
            try:
                self.refusal = refusal_of(self.url)
            except OSError as error:
                raise StoreError(f"cannot read {self.url!r}: {error}.") from error
        if self.refusal is not None:
            raise StoreError(self.refusal)

    @property
    def is_finished(self) -> bool:
        """Whether the run on disk is whole, but for visits that were dropped and counted."""
        return self._opened is not None and self._opened.is_finished

    @property
    def lost_rows(self) -> int:
        """Rows that a reader of the run would miss now."""
        return self.trouble.dropped_rows if self._opened is None else self._opened.lost_rows

    def resume(self, step: int) -> None:
        """Say that the run goes on from a step: what was written from there on is superseded."""
        self._start_step, self._is_resumed = step, True

    def write(self, batch: ScoreBatch) -> None:
        """Take one step's visits."""
        if self._joins(len(batch.ids)):
            self.opened.write(batch)

    def write_table(self, name: str, columns: Mapping[str, ArrayLike]) -> None:
        """Take rows of another table."""
        if self._joins(len(next(iter(columns.values()), ()))):  # type: ignore[arg-type]
            self.opened.write_table(name, columns)

    def write_info(self, facts: Mapping[str, Any]) -> None:
        """Add facts about the run."""
        if self._joins(0):
            self.opened.write_info(facts)

    def checkpoint(self) -> dict[str, Any]:
        """Make everything so far visible."""
        return self.opened.checkpoint() if self._opened is not None else {}

    def end(self, timeout_s: float) -> None:
        """Make everything so far visible because the process ends; a run that was not joined yet is left alone."""
        if self._opened is not None:
            self._opened.end(timeout_s)

    def close(self) -> None:
        """Write what is left; a run without rows is written too."""
        self.opened.close()

    def _joins(self, rows: int) -> bool:
        """Open the sink where it is not; where that fails, count the rows and let the training go on."""
        if self._opened is None and time.monotonic() >= self._resting_until:
            try:
                _ = self.opened
            except StoreError as error:
                self.trouble.note(error)
                self._resting_until = time.monotonic() + _REST_S
        if self._opened is None:
            self.trouble.drop(1, rows)
        return self._opened is not None
