"""The parts that one process writes: their names, their rows, whether they are still there, and how long they stay.

``keep_visits="last"``: parts of older epochs go as newer epochs are complete.

A part then holds visits of one epoch. An epoch is complete, for this process, when a visit of a later one has come; the
parts before the last complete epoch are removed. At the end the epoch before the newest goes too, where the newest has
at least as many visits. So what stays is each example's visits in the last epoch, and where training stopped within an
epoch, those of the epoch before beside them.

A run may be resumed from its last checkpoint, and then goes on within the epoch of that time. Nothing that it would
need is removed: where checkpoints are made, epochs are counted from the last one, not from the newest visit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sgoif.files.locations import Place
from sgoif.store.parts import name_part, numbers_taken
from sgoif.store.schema import LOGS

__all__ = ["EpochParts", "OwnParts"]


class OwnParts:
    """Parts of one attempt by one rank.

    Args:
        place: the run's folder.
        rank: of this process.
        attempt: of the run.
    """

    def __init__(self, place: Place, rank: int, attempt: int) -> None:
        self.place, self.rank, self.attempt = place, rank, attempt
        self.rows: dict[str, int] = {}  # by path, of all parts that are visible
        self.editions: dict[str, int] = {}  # of tables that are written whole
        self._numbers: dict[str, int] = {}

    def path_of(self, table: str) -> str:
        """Name the part of a table that is being written."""
        number = self.attempt
        if table not in LOGS:
            if table not in self.editions:
                self.editions[table] = 1 + max([0, *numbers_taken(self.place, table)])
            number = self.editions[table]
        return name_part(table, self.rank, number, self._numbers.get(table, 0))

    def close(self, table: str) -> None:
        """Go on to the table's next part."""
        self._numbers[table] = self._numbers.get(table, 0) + 1

    def forget(self, paths: Iterable[str]) -> None:
        """Take note of parts that were removed on purpose."""
        for path in paths:
            self.rows.pop(path, None)

    def lose_deleted(self) -> tuple[int, int]:
        """Count parts that somebody else deleted, and their rows; each is counted once."""
        folders = {path.rpartition("/")[0] for path in self.rows}
        there = {path for folder in folders for path in self.place.sizes(folder)}
        gone = [path for path in self.rows if path not in there]
        return len(gone), sum(self.rows.pop(path) for path in gone)


@dataclass(slots=True)
class EpochParts:
    """The parts that one process keeps, by epoch.

    >>> parts = EpochParts()
    >>> for epoch in range(4):
    ...     parts.add(f"part-{epoch}", epoch, num_rows=100)
    >>> parts.find_outdated()
    ['part-0', 'part-1']
    >>> parts.find_outdated(is_finished=True)
    ['part-2']
    """

    checkpoint_epoch: int | None = None  # of the last checkpoint, or of the one that this attempt began from
    _parts: list[tuple[str, int, int]] = field(default_factory=list)  # path, epoch, rows

    @property
    def newest(self) -> int:
        return max((epoch for _, epoch, _ in self._parts), default=0)

    def add(self, path: str, epoch: int, num_rows: int) -> None:
        """Take note of a part that is visible now."""
        self._parts.append((path, epoch, num_rows))

    def find_outdated(self, is_finished: bool = False) -> list[str]:
        """Name the parts to remove, and forget them."""
        newest = self.newest
        first = newest - 1
        if is_finished and self._rows(newest) >= self._rows(newest - 1):
            first = newest
        elif not is_finished and self.checkpoint_epoch is not None:
            first = min(first, self.checkpoint_epoch - 1)
        gone = [path for path, epoch, _ in self._parts if epoch < first]
        self._parts = [item for item in self._parts if item[1] >= first]
        return gone

    def _rows(self, epoch: int) -> int:
        return sum(rows for _, found, rows in self._parts if found == epoch)
