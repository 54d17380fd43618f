"""The writing thread of a sink: gathers rows into parts, writes them in time, and keeps ``run.json``.

The training thread only hands over, through a queue with a bound in bytes. Where the queue is full it waits for room,
which is counted; where there is none after a while, as when a network filesystem hangs, the block is given up rather
than the training.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sgoif.errors import TakenOver
from sgoif.files.locations import Place
from sgoif.store.blocks import PartRows
from sgoif.store.info import find_info, now, write_info
from sgoif.store.ownparts import EpochParts, OwnParts
from sgoif.store.parts import list_parts, open_part
from sgoif.store.schema import LOGS, IdKind
from sgoif.store.write_errors import WriteErrors

__all__ = ["BoundedQueue", "Item", "Pace", "PartWriter"]

_STATES = {"checkpoint": "running", "close": "finished", "unclosed": "unclosed"}  # what run.json says after each
_FIRST_RATIO = 0.65  # encoded bytes per byte in memory, until a part has shown it
_REWRITTEN_PER_S = 256 << 10  # bytes of parts that are not full: one of 64 MB is rewritten every four minutes


@dataclass(frozen=True, slots=True)
class Pace:
    """How much a writer gathers, and how long it waits."""

    part_bytes: int = 64 << 20  # at which a part is closed, encoded
    queue_bytes: int = 32 << 20  # of visits that may wait for the writing thread
    patience_s: float = 30.0  # a step may wait for room in a full queue; then its visits are dropped
    flush_s: float = 300.0  # `checkpoint` and `close` may wait; not again while a checkpoint is overdue
    flush_every_s: float = (
        30.0  # rows are on disk, their part full or not; less often where it is large, see `_REWRITTEN_PER_S`
    )
    retry_after_s: Sequence[float] = (0.1, 0.5, 2.0)  # before writing again what failed; then it is given up
    rest_s: float = 60.0  # visits are dropped unseen after that, before the next try


@dataclass(frozen=True, slots=True)
class Item:
    """Something to do for the writing thread."""

    kind: str
    value: Any
    num_bytes: int = 0
    num_rows: int = 0


class BoundedQueue:
    """First in, first out, by bytes.

    Args:
        max_bytes: bytes that may wait; one item may be larger, when it is alone.
        patience_s: longest wait for room. When it was in vain, later items do not wait again until there is room.
    """

    def __init__(self, max_bytes: int, patience_s: float) -> None:
        self.max_bytes, self.patience_s = max_bytes, patience_s
        self.waited_s = 0.0
        self.peak_bytes = 0
        self._items: deque[Item] = deque()
        self._bytes = 0  # waiting, and taken but not done
        self._is_stuck = False
        self._changed = threading.Condition()

    def put(self, item: Item) -> bool:
        """Hand over; False where there was no room in time."""
        with self._changed:
            if not self._has_room(item):
                begun = time.monotonic()
                found = self._changed.wait_for(lambda: self._has_room(item), 0 if self._is_stuck else self.patience_s)
                self.waited_s += time.monotonic() - begun
                self._is_stuck = not found
                if not found:
                    return False
            self._is_stuck = False
            self._items.append(item)
            self._bytes += item.num_bytes
            self.peak_bytes = max(self.peak_bytes, self._bytes)
            self._changed.notify_all()
            return True

    @property
    def has_items(self) -> bool:
        """Whether something waits to be taken."""
        return bool(self._items)

    def take(self, timeout_s: float | None = None) -> Item | None:
        """Wait for the next item; None where none came in time."""
        with self._changed:
            found = self._changed.wait_for(lambda: bool(self._items), timeout_s)
            return self._items.popleft() if found else None

    def done(self, item: Item) -> None:
        """Give back the room of an item that was taken."""
        with self._changed:
            self._bytes -= item.num_bytes
            self._changed.notify_all()

    def _has_room(self, item: Item) -> bool:
        return not item.num_bytes or not self._bytes or self._bytes + item.num_bytes <= self.max_bytes


class PartWriter:
    """The side of :class:`sgoif.store.writer.ParquetSink` that its thread runs; only that sets what is below."""

    place: Place
    rank: int
    attempt: int
    start_step: int
    keep_visits: str
    part_bytes: int
    flush_every_s: float
    rest_s: float
    retry_after_s: tuple[float, ...]
    trouble: WriteErrors
    is_finished: bool  # and whole, but for rows of the logs that were dropped and counted
    _queue: BoundedQueue
    _parts: OwnParts
    _info: dict[str, Any]
    _facts: dict[str, Any]
    _environment: dict[str, Any]
    _earlier: dict[str, Any]
    _kinds: dict[str, IdKind | None]
    _next_step: int

    def __init__(self) -> None:
        self._rows_settled = 0
        self._gathering: dict[str, PartRows] = {}  # by table
        self._unflushed_since: float | None = None
        self._flushed_bytes = 0  # by the last flush
        self._complete_editions: dict[str, int] = {}
        self._spoilt: set[str] = set()  # tables of which a part could not be written
        self._ratios: dict[str, float] = {}  # encoded bytes per byte in memory, as the last part had it
        self._epochs = EpochParts()
        self._resting_until = 0.0

    @property
    def faults(self) -> dict[str, int]:
        """Errors of this attempt by cause."""
        return self.trouble.faults

    @property
    def dropped_rows(self) -> int:
        """Rows that this attempt gave up."""
        return self.trouble.dropped_rows

    @property
    def num_parts(self) -> int:
        """Parts that are visible by now."""
        return len(self._parts.rows)

    @property
    def num_rows(self) -> int:
        """Rows that are visible by now."""
        return sum(list(self._parts.rows.values()))  # a copy: the writing thread may add to it

    @property
    def waited_s(self) -> float:
        """Seconds that training waited for room in the queue."""
        return self._queue.waited_s

    def _run(self) -> None:
        while True:
            item = self._queue.take(self._until_flush())
            if item is not None:
                self._work(item)
                if item.kind in ("close", "unclosed"):
                    return
            if self._until_flush() == 0:
                self._attempt(self._flush)

    def _work(self, item: Item | None) -> None:
        assert item is not None
        try:
            self._handle(item)
        except Exception as error:  # the thread outlives any of them
            self.trouble.note(error)
        finally:
            self._queue.done(item)
            if isinstance(item.value, threading.Event):
                item.value.set()

    def _handle(self, item: Item) -> None:
        if item.kind == "info":
            self.trouble.patiently(lambda: self._write_info("running"), self.retry_after_s)
        elif item.kind in _STATES:
            self._close_all(_STATES[item.kind])
        elif item.kind == "visits" and time.monotonic() < self._resting_until:
            self._give_up(1, item.num_rows)
        else:
            self._gather(item)

    def _gather(self, item: Item) -> None:
        found = self._gathering.get(item.kind)
        epoch = item.value.epoch if item.kind == "visits" and self.keep_visits == "last" else None
        if found is not None and epoch != found.epoch:
            self._attempt(lambda: self._close_part(item.kind))
            found = None
        if found is None:
            if item.kind == "visits" and self._info["id_kind"] is None:
                self._attempt(lambda: self._write_info("running"))  # the kind of the ids is known from now on
            if epoch is not None and self._epochs.checkpoint_epoch is None and self.start_step > 0:
                self._attempt(lambda: self._know_older_epochs(epoch))
            found = self._gathering[item.kind] = PartRows(item.kind, self.attempt, epoch, self._lose)
        found.add(item.value)
        if item.kind in LOGS and self._unflushed_since is None:
            self._unflushed_since = time.monotonic()
        if found.num_bytes * self._ratios.get(item.kind, _FIRST_RATIO) >= self.part_bytes:
            self._close_part(item.kind)

    def _until_flush(self) -> float | None:
        """Seconds until rows have waited long enough for their part to be full; None where none wait."""
        if self._unflushed_since is None:
            return None
        pause = max(self.flush_every_s, self._flushed_bytes / _REWRITTEN_PER_S)
        return max(0.0, self._unflushed_since + pause - time.monotonic())

    def _flush(self) -> None:
        """Make rows visible whose part is not full; the part is written again when it has grown."""
        self._unflushed_since = time.monotonic()  # where it fails, it is tried again
        waiting = [table for table in self._gathering if table in LOGS]
        self._flushed_bytes = sum(self._write_part(table) for table in waiting)
        self._unflushed_since = None
        self._write_info("running")

    def _write_part(self, table: str) -> int:
        """Write the rows of a part that may still grow; return its bytes."""
        found = self._gathering[table]
        if found.num_rows == found.num_visible:
            return 0
        data = found.encode(self._kinds["id_kind"] or "int", is_last=False)
        if data is None:
            return 0
        path = self._parts.path_of(table)
        self.place.write(path, data)
        self._show(path, found)
        return len(data)

    def _close_part(self, table: str) -> None:
        found = self._gathering.pop(table, None)
        if found is None:
            return
        path = self._parts.path_of(table)
        try:
            if found.num_rows == found.num_visible:
                return
            data = found.encode(self._kinds["id_kind"] or "int")
            if data is None:
                return
            self._ratios[table] = max(0.1, len(data) / max(found.num_bytes, 1))
            self.trouble.patiently(lambda: self.place.write(path, data), self.retry_after_s)
            self._show(path, found)
        except Exception:
            self._give_up(found.num_blocks, found.num_rows - found.num_visible)
            self._spoilt.add(table)
            self._resting_until = time.monotonic() + self.rest_s
            raise
        finally:
            if found.num_visible:
                self._parts.close(table)
                if found.epoch is not None:
                    self._epochs.add(path, found.epoch, found.num_visible)
                    self._remove(self._epochs.find_outdated())

    def _show(self, path: str, found: PartRows) -> None:
        """Count rows that a reader sees now."""
        self._rows_settled += found.num_rows - found.num_visible
        found.num_visible = self._parts.rows[path] = found.num_rows

    def _remove(self, paths: list[str]) -> None:
        self.place.remove(paths)
        self._parts.forget(paths)

    def _close_all(self, state: str) -> None:
        self._resting_until, self.is_finished = 0.0, False  # a checkpoint is worth a try
        for table in list(self._gathering):
            self._attempt(lambda table=table: self._close_part(table))  # type: ignore[misc]
        self._unflushed_since = None
        if self.keep_visits == "last":
            self._epochs.checkpoint_epoch = self._epochs.newest
            self._remove(self._epochs.find_outdated(is_finished=state == "finished"))
        self._attempt(self._count_deleted)
        sound = self._parts.editions.keys() - self._spoilt
        self._complete_editions = {table: self._parts.editions[table] for table in sound}
        self.trouble.patiently(lambda: self._write_info(state), self.retry_after_s)
        self.is_finished = state == "finished" and self._spoilt <= set(LOGS)

    def _count_deleted(self) -> None:
        """Rows that were on disk and are no longer: somebody deleted the folder, or another run took it."""
        parts, rows = self._parts.lose_deleted()
        if parts:
            self.trouble.drop(parts, rows)
            self.trouble.count(f"{parts} parts of the run were deleted while it went on, with {rows} rows")

    def _know_older_epochs(self, epoch: int) -> None:
        """A resumed run goes on in this epoch; parts that this rank wrote before it was killed are its own too."""
        self._epochs.checkpoint_epoch = epoch
        for item in list_parts(self.place, "visits", self._info):
            if f"/rank-{self.rank:05d}/" in item.path:
                with open_part(self.place, item.path) as file:
                    found = file.read(columns=["epoch"])["epoch"].to_numpy()
                if len(found):
                    self._epochs.add(item.path, int(found.max()), len(found))

    def _write_info(self, state: str) -> None:
        if self.rank != 0:
            return
        current = find_info(self.place)
        if current is not None:
            attempts = [item["attempt"] for item in current["attempts"]]
            if max(attempts, default=-1) > self.attempt:
                raise TakenOver("a later attempt has taken over this run; its run.json is left alone.")
            if self.attempt in attempts:  # tables may have been written whole by somebody else meanwhile
                self._info["editions"] = current.get("editions", {})
                self._info["added_up"] = current.get("added_up")  # of `sgoif close`, of a training that goes on
        self._info = {
            **self._info,
            **self._environment,
            **self.trouble.since(self._earlier),
            "state": state,
            "updated": now(),
            **self._kinds,
            "keep_visits": self.keep_visits,
            "waited_s": round(self.waited_s, 3),
            "next_step": self._next_step,
            "editions": {**self._info["editions"], **self._complete_editions},
            "facts": self._facts,
        }
        if state == "finished" or self._info.get("added_up") is None:
            self._info.pop("added_up", None)
        write_info(self.place, self._info)

    def _attempt(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            self.trouble.note(error)

    def _lose(self, num_rows: int, error: Exception) -> None:
        self._give_up(1, num_rows)
        self.trouble.note(error)

    def _give_up(self, blocks: int, rows: int) -> None:
        self._rows_settled += rows
        self.trouble.drop(blocks, rows)
