"""Rows on their way into a part: steps are joined as they come, converted, and handed out as one table."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from sgoif.records import ScoreBatch
from sgoif.store.blocks import Columns, encode_part, join_chunks, sorted_groups, table_groups, visit_columns
from sgoif.store.ids import kind_of_ids
from sgoif.store.queue import Item
from sgoif.store.schema import IdKind, schema_of

__all__ = ["Gathering"]

_JOINED_ROWS = 8192  # steps are joined up to this many rows before they are converted: a step alone is mostly overhead
_WIDE_ID_BYTES = 1024  # fixed-width ids beyond this are converted at once, so that no array of that width grows


class Gathering:
    """The rows of one table whose part is not full yet.

    Args:
        table: its name.
        attempt: of the run.
        epoch: of all its rows, where parts are cut by epoch.
        lose: called with rows that could not be converted, and why.
    """

    def __init__(self, table: str, attempt: int, epoch: int | None, lose: Callable[[int, Exception], None]) -> None:
        self.name, self.attempt, self.epoch = table, attempt, epoch
        self.num_rows, self.num_bytes, self.num_blocks = 0, 0, 0
        self.num_visible = 0  # rows that a part on disk holds already
        self._lose = lose
        self._steps: list[ScoreBatch] = []
        self._step_rows = 0
        self._chunks: list[Columns] = []
        self._tables: list[pa.Table] = []

    def add(self, item: Item) -> None:
        """Take a step's visits, or rows of another table."""
        self.num_blocks += 1
        self.num_rows += item.num_rows
        if self.name != "visits":
            self._tables.append(item.value)
            self.num_bytes += item.num_bytes
            return
        is_wide = item.value.ids.dtype.itemsize > _WIDE_ID_BYTES
        if is_wide:
            self._convert()
        self._steps.append(item.value)
        self._step_rows += item.num_rows
        if is_wide or self._step_rows >= _JOINED_ROWS:
            self._convert()

    def encode(self, kind: IdKind, *, is_last: bool = True) -> pa.Buffer | None:
        """Make a part of all rows; None where none is left. Visits are sorted by the hash of their ids.

        Args:
            kind: of the ids.
            is_last: whether the rows may be forgotten.
        """
        if self.name != "visits":
            table = pa.concat_tables(self._tables, promote_options="default").combine_chunks()
            return encode_part(table.schema, table_groups(table))
        self._convert()
        schema = schema_of("visits", kind)
        if not self._chunks:
            return None
        joined = join_chunks(self._chunks, schema)
        self._chunks = [] if is_last else [joined]
        return encode_part(schema, sorted_groups(joined, schema))

    def _convert(self) -> None:
        steps, self._steps, self._step_rows = self._steps, [], 0
        if not steps:
            return
        try:
            self._keep(steps)
        except Exception:  # one of them is malformed: the others shall not be lost with it
            for step in steps:
                try:
                    self._keep([step])
                except Exception as error:
                    self.num_rows, self.num_blocks = self.num_rows - len(step.ids), self.num_blocks - 1
                    self._lose(len(step.ids), error)

    def _keep(self, steps: list[ScoreBatch]) -> None:
        chunk = visit_columns(steps, self.attempt, kind_of_ids(np.asarray(steps[0].ids)))
        self._chunks.append(chunk)
        self.num_bytes += sum(int(column.nbytes) for column in chunk.values())
