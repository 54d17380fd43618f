"""Writes a run while it goes on: visits in, Parquet parts out, on a thread of its own.

The training thread hands blocks over and goes on. The writing thread gathers them until a part is full, sorts it by the
hash of the ids, and writes it so that it appears whole or not at all. A part that is not full is written as well, every
half minute, and replaced by a longer one until it is full: a kill costs half a minute of visits and leaves the run
readable, and there are no more files for it. Errors of the disk or the network never reach the training: they are
retried, counted and logged once, and what cannot be written is dropped and counted.

Memory: the queue's bytes, the rows of one part and its encoded form: 470 MB in all with the defaults, and 200 MB with
parts of 16 MB (measured, at 4 million visits). It does not grow with the run.

An attempt that starts at step 0 supersedes all that earlier attempts wrote. A monitor that is about to load a
checkpoint must not say so; so :class:`DeferredSink` looks at the folder when it is made, and writes to it when training
starts. A folder that holds another run is refused on the first step, see :mod:`sgoif.store.holding`. A run that cannot
be joined for another reason is tried again later: visits until then are dropped and counted.
"""

from __future__ import annotations

import atexit
import copy
import os
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike

from sgoif.errors import StoreError
from sgoif.files.locations import place_of
from sgoif.records import ScoreBatch
from sgoif.store.blocks import check_kind, kind_of_ids, table_of
from sgoif.store.holding import refusal_of
from sgoif.store.info import environment, find_info, now, restarts
from sgoif.store.ownparts import OwnParts
from sgoif.store.parts import free_attempt, older_parts
from sgoif.store.schema import LOGS, SCHEMA_VERSION, TABLES, kind_field, step_column
from sgoif.store.write_errors import WriteErrors
from sgoif.store.writing import BoundedQueue, Item, Pace, PartWriter

__all__ = ["DeferredSink", "KeepVisits", "Pace", "ParquetSink"]

_KIND_FIELDS = ("id_kind", "holdout_id_kind")

KeepVisits = Literal["all", "last", "none"]

_REST_S = 60.0  # joining a run waits for its disk or network, which the training may feel once a minute
_LOOK_S = 0.1  # between two looks at whether the thread still runs
_EXIT_S = 10.0  # a process that ends waits no longer than this for its rows to be written

_WRITERS: weakref.WeakValueDictionary[tuple[int, str, int], ParquetSink] = weakref.WeakValueDictionary()


class ParquetSink(PartWriter):
    """A score sink that writes a run folder.

    What is written after :meth:`close` is written too, once closed again.

    Args:
        url: the run's folder: a local path or any fsspec URL.
        rank: of this process; each writes files of its own, and rank 0 alone writes ``run.json``.
        attempt: how often the run was started before. None takes the next free number from ``run.json``, which is right
            for one process; with several, rank 0 asks :func:`next_attempt` and tells the others.
        start_step: the first step that this attempt will write. What earlier attempts wrote from there on is
            superseded and no reader sees it again.
        keep_visits: ``all``; ``last`` for those of each example's last epoch (see :mod:`sgoif.store.ownparts`);
            ``none``.
        pace: how much is gathered, and how long is waited.
        facts: free-form facts about the run for ``run.json``.
        trouble: where to count; by default counted from 0.
        overwrite: delete the run that the folder holds; what is not of a run stays.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        rank: int = 0,
        attempt: int | None = None,
        *,
        start_step: int = 0,
        keep_visits: KeepVisits = "all",
        pace: Pace | None = None,
        facts: Mapping[str, Any] | None = None,
        trouble: WriteErrors | None = None,
        overwrite: bool = False,
    ) -> None:
        if keep_visits not in ("all", "last", "none"):
            raise StoreError(f"keep_visits must be 'all', 'last' or 'none', got {keep_visits!r}.")
        pace = pace or Pace()
        if rank < 0 or start_step < 0 or pace.part_bytes < 1 or pace.queue_bytes < 1:
            sizes = f"{rank}, {start_step}, {pace.part_bytes} and {pace.queue_bytes}"
            raise StoreError(f"rank and start_step count from 0, sizes from 1: {sizes}.")
        super().__init__()
        self.place = place_of(url)
        self.rank, self.start_step, self.keep_visits = rank, start_step, keep_visits
        self.part_bytes, self.flush_s, self.flush_every_s = pace.part_bytes, pace.flush_s, pace.flush_every_s
        self.retry_after_s, self.rest_s = tuple(pace.retry_after_s), pace.rest_s
        self.trouble = trouble or WriteErrors()
        self.is_finished = False  # and whole, but for rows of the logs that were dropped and counted
        self._facts = dict(facts or {})
        self._queue = BoundedQueue(pace.queue_bytes, pace.patience_s)
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._next_step = start_step
        self._dropped_before = 0  # rows dropped up to the last checkpoint
        self._unanswered: threading.Event | None = None  # of a checkpoint that waited in vain
        self._rows_taken = 0
        self._end_earlier()
        self._begin(attempt, overwrite)
        atexit.register(self._at_exit)

    def _end_earlier(self) -> None:
        """Let an earlier writer of this process finish first: one that was left unclosed may be writing run.json."""
        key = (self._pid, self.place.url, self.rank)
        earlier = _WRITERS.get(key)
        if earlier is not None:
            earlier.end()
            if earlier._thread is not None:
                earlier._thread.join(timeout=1.0)
        _WRITERS[key] = self

    def _begin(self, attempt: int | None, overwrite: bool) -> None:
        """Join the run in the folder, or make one; a folder that will not do is refused here, before the first step."""
        try:
            info = find_info(self.place)
            taken = [] if info is None else [int(item["attempt"]) for item in info["attempts"]]
            self.attempt = free_attempt(self.place, info) if attempt is None else attempt
            if self.rank == 0 and self.attempt in taken:
                raise StoreError(
                    f"{self.place.url!r} has an attempt {self.attempt} already; pass attempt=None for the next one, or "
                    "another folder for another run."
                )
            info = None if overwrite else info
            self._parts = OwnParts(self.place, self.rank, self.attempt)
            new = {"schema_version": SCHEMA_VERSION, "created": now(), "id_kind": None, "attempts": []}
            self._info = dict(new if info is None else info)
            self._info.setdefault("editions", {})
            self._kinds = {name: self._info.get(name) for name in _KIND_FIELDS}
            self._environment = environment()
            self._facts = {**self._info.get("facts", {}), **self._facts}
            self._earlier = {} if self.start_step == 0 else dict(self._info)
            started = {"attempt": self.attempt, "start_step": self.start_step, "started": now(), **restarts()}
            if self.start_step == 0:
                self._info["editions"] = {}  # all that was written is superseded
                self._info.pop("added_up", None)
            self._info["attempts"] = [*self._info["attempts"], started]
            for table in TABLES:
                self.place.remove_unfinished(f"{table}/rank-{self.rank:05d}")
            self._write_info("running")
            if overwrite and self.rank == 0:  # the old run is no longer listed: stopped half-way, it is gone as well
                self.place.remove(older_parts(self.place, self.attempt))
        except StoreError:
            raise
        except Exception as error:  # each filesystem has errors of its own
            raise StoreError(f"cannot write a run to {self.place.url!r}: {type(error).__name__}: {error}.") from error

    # The training thread's side.

    @property
    def lost_rows(self) -> int:
        """Rows given up, and rows taken that are not visible yet: what a reader would miss now."""
        return self.trouble.dropped_rows + self._rows_taken - self._rows_settled

    def write(self, batch: ScoreBatch) -> None:
        """Take one step's visits; they are not copied, so they must not be changed afterwards.

        Raises:
            StoreError: The ids are of another kind than the run's. Nothing else raises here.
        """
        rows = len(batch.ids)
        self._next_step = max(self._next_step, batch.step + 1)
        if self.keep_visits == "none" or rows == 0:
            return
        kind = kind_of_ids(batch.ids)
        check_kind(kind, self._kinds["id_kind"])
        self._kinds["id_kind"] = kind
        self._put(Item("visits", batch, _num_bytes(batch), rows))

    def write_table(self, name: str, columns: Mapping[str, ArrayLike]) -> None:
        """Take rows of another table than visits; columns beyond the schema are kept too.

        Rows of a log (anchors) are added. ``examples`` and ``holdout`` are whole: what one sink writes there
        takes the place of all that was there before, once the sink makes a checkpoint or is closed.
        """
        if name == "visits":
            raise StoreError("visits come through write(); write_table is for the other tables.")
        if name in TABLES and name not in LOGS and self.rank != 0:
            raise StoreError(f"{name!r} is written whole, by rank 0; this is rank {self.rank}.")
        table, kind = table_of(name, columns, self.attempt, self._kinds[kind_field(name)])
        if kind is not None:
            self._kinds[kind_field(name)] = kind
        if step_column(name) == "step" and len(table):
            self._next_step = max(self._next_step, 1 + pc.max(table["step"]).as_py())
        if len(table):
            self._put(Item(name, table, int(table.nbytes), len(table)))

    def write_info(self, facts: Mapping[str, Any]) -> None:
        """Add facts about the run to ``run.json``."""
        self._facts = {**self._facts, **facts}
        self._put(Item("info", None))

    def checkpoint(self) -> dict[str, Any]:
        """Close all parts, so that a run resumed from here finds every visit so far; keep the answer beside the state.

        ``complete`` is False where rows had to be dropped since the last one, or the disk did not answer in time.
        """
        is_done = self._finish("checkpoint")
        before, self._dropped_before = self._dropped_before, self.dropped_rows
        return {
            "attempt": self.attempt,
            "rank": self.rank,
            "step": self._next_step,
            "parts": self.num_parts,
            "rows": self.num_rows,
            "complete": is_done and self._dropped_before == before,
        }

    def close(self) -> None:
        """Write what is left, and say in ``run.json`` that the run finished."""
        self._finish("close")
        thread = self._thread
        if thread is not None:
            thread.join(timeout=1.0)  # it has nothing left to do, unless the disk hangs
            self._thread = thread if thread.is_alive() else None
        atexit.unregister(self._at_exit)

    def end(self, timeout_s: float = _EXIT_S) -> None:
        """Write what there is because the process ends; ``run.json`` says that the run was not closed."""
        if os.getpid() == self._pid and (self._is_writing or self._rows_taken > self._rows_settled):
            done = threading.Event()
            self._put(Item("unclosed", done))
            if not self._wait(done, timeout_s) and timeout_s > 0:
                self.trouble.note(StoreError(f"{self.place.url!r} did not take all rows within {timeout_s:g} s."))

    def _wait(self, done: threading.Event, timeout_s: float) -> bool:
        """Wait for an item that was put. The thread may have ended while it was: then another takes it."""
        until = time.monotonic() + timeout_s
        while not done.wait(min(_LOOK_S, max(0.0, until - time.monotonic()))):
            if time.monotonic() >= until:
                return False
            if not self._is_writing and self._queue.has_items:
                self._start()
        return True

    def _put(self, item: Item) -> None:
        if os.getpid() != self._pid:
            return  # a forked copy has no writing thread, and the run is its parent's
        is_taken = self._queue.put(item)
        if is_taken:
            self._rows_taken += item.num_rows
        else:
            self._spoilt.add(item.kind)
            self.trouble.drop(1, item.num_rows)
            self.trouble.note(StoreError(f"the writer of {self.place.url!r} does not keep up; visits are dropped."))
        if not self._is_writing:
            self._start()

    @property
    def _is_writing(self) -> bool:
        """Whether the thread runs; it ends with the run, closed or not, and what comes later starts another."""
        return self._thread is not None and self._thread.is_alive()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="sgoif-store", daemon=True)
        try:
            thread.start()
            self._thread = thread
        except RuntimeError:  # the interpreter ends, and lets no thread begin
            while self._queue.has_items:
                self._work(self._queue.take())

    def _finish(self, kind: str) -> bool:
        if os.getpid() != self._pid:
            return False
        done = threading.Event()
        self._put(Item(kind, done))
        is_stuck = self._unanswered is not None and not self._unanswered.is_set()
        is_done = self._wait(done, 0.0 if is_stuck and kind == "checkpoint" else self.flush_s)
        if not is_done:
            self._unanswered = done
            self.trouble.note(StoreError(f"{self.place.url!r} did not take all rows within {self.flush_s:g} s."))
        return is_done

    def _at_exit(self) -> None:
        """A script that ends without close(), by an exception say, loses nothing; its run is not finished."""
        self.end(min(self.flush_s, _EXIT_S))


class DeferredSink:
    """A :class:`ParquetSink` that opens with the first rows; what it takes goes there.

    Args:
        url: the run's folder; refused here where it holds something else.
        rank, attempt, keep_visits: as :class:`ParquetSink` has them.
        overwrite: delete the run that the folder holds when this one begins, unless it is resumed.
        refusal: why nothing may be written unless the run is resumed, as rank 0 found; by default this process looks.
        facts: about the run for ``run.json``, there from the beginning.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        rank: int = 0,
        attempt: int | None = None,
        keep_visits: KeepVisits = "all",
        overwrite: bool = False,
        refusal: str | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self._facts = copy.deepcopy(dict(facts or {}))  # the training goes on to change its own
        self.overwrite, self.refusal, self._is_resumed = overwrite, refusal, False
        self.url, self.rank, self.attempt, self.keep_visits = str(url), rank, attempt, keep_visits
        self.trouble = WriteErrors()
        self._opened: ParquetSink | None = None
        self._start_step, self._resting_until = 0, 0.0
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
        if self._joins(len(batch.ids)):
            self.opened.write(batch)

    def write_table(self, name: str, columns: Mapping[str, ArrayLike]) -> None:
        if self._joins(len(next(iter(columns.values()), ()))):  # type: ignore[arg-type]
            self.opened.write_table(name, columns)

    def write_info(self, facts: Mapping[str, Any]) -> None:
        if self._joins(0):
            self.opened.write_info(facts)

    def checkpoint(self) -> dict[str, Any]:
        return self.opened.checkpoint() if self._opened is not None else {}

    def end(self, timeout_s: float) -> None:
        if self._opened is not None:  # a run that was not joined yet is left alone
            self._opened.end(timeout_s)

    def close(self) -> None:
        self.opened.close()  # a run without rows is written too

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


def _num_bytes(batch: ScoreBatch) -> int:
    size = int(batch.ids.nbytes) + int(batch.given_labels.nbytes) + sum(int(c.nbytes) for c in batch.columns.values())
    return size + (sum(map(len, batch.ids)) if batch.ids.dtype.kind == "O" and isinstance(batch.ids[0], str) else 0)
