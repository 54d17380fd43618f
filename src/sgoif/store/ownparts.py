"""The parts that one process writes: their names, their rows, and whether they are still there."""

from __future__ import annotations

from collections.abc import Iterable

from sgoif.files.locations import Place
from sgoif.store.parts import name_part, numbers_taken
from sgoif.store.schema import LOGS

__all__ = ["OwnParts"]


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
