"""A finished run: its tables, wherever they are, and the questions people ask of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sgoif.adaptors import class_issues, find_duplicates, group_issues, label_issues
from sgoif.errors import SgoifError
from sgoif.evidence import SKETCH_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FileTables", "MemoryTables", "Run", "Tables", "load"]

Columns = Mapping[str, NDArray[Any]]


class Tables(Protocol):
    """Where a run's tables are: ``examples``, ``visits``, ``holdout``, ``canaries``, ``anchors``."""

    def columns(self, name: str) -> Columns:
        """Read a whole table as arrays; empty where there is none."""

    def arrow(self, name: str) -> pa.Table:
        """Read a whole table as Arrow."""

    def sql(self, query: str, **parameters: Any) -> pa.Table:
        """Answer one SELECT over the tables."""


class MemoryTables:
    """Tables held as arrays."""

    def __init__(self, tables: Mapping[str, Columns]) -> None:
        self._tables = dict(tables)

    def columns(self, name: str) -> Columns:
        return self._tables.get(name, {})

    def arrow(self, name: str) -> pa.Table:
        import pyarrow as pa

        return pa.table(dict(self.columns(name)))

    def sql(self, query: str, **parameters: Any) -> pa.Table:
        import duckdb

        with duckdb.connect(":memory:") as connection:
            for name in self._tables:
                connection.register(name, self.arrow(name))
            try:
                return connection.sql(query, params=parameters or None).to_arrow_table()
            except duckdb.Error as error:
                raise SgoifError(f"the query was refused: {error}") from error


class FileTables:
    """Tables of a run on disk or in an object store, read where they lie."""

    def __init__(self, url: str | os.PathLike[str]) -> None:
        from sgoif.store import RunFiles

        self.files = RunFiles(url)

    def columns(self, name: str) -> Columns:
        table = self.arrow(name)
        known = [
            key for key in table.column_names if table[key].null_count < len(table)
        ]  # a schema has columns to spare
        return {key: table[key].to_numpy(zero_copy_only=False) for key in known}

    def arrow(self, name: str) -> pa.Table:
        return self.files.table(name)

    def sql(self, query: str, **parameters: Any) -> pa.Table:
        return self.files.sql(query, **parameters)


class Run:
    """What a monitored training, an audit or a scan found.

    Args:
        info: how the run went: settings, plan, overhead, faults, calibration.
        tables: its tables.
    """

    def __init__(self, info: dict[str, Any], tables: Tables) -> None:
        self.info, self._tables = info, tables

    @cached_property
    def table(self) -> Columns:
        """One row per example, as arrays."""
        return self._tables.columns("examples")

    @cached_property
    def visits(self) -> Columns:
        """One row per visit, as arrays; empty where they were not kept."""
        return self._tables.columns("visits")

    @property
    def class_names(self) -> Sequence[str]:
        """Names of the classes; empty where they have none."""
        return self.info.get("class_names") or ()

    @property
    def is_calibrated(self) -> bool:
        """Whether the run knows probabilities."""
        return "p_mislabeled" in self.table

    def examples(self) -> pa.Table:
        """One row per example: gate-weighted means of every signal, suggested labels, confidence and visits."""
        return self._tables.arrow("examples")

    def holdout(self) -> pa.Table:
        """One row per hold-out example that was seen, its own label judged by the other fold."""
        return self._tables.arrow("holdout")

    def anchors(self) -> pa.Table:
        """One row per anchor and refresh: residual, confidence and what they were judged by."""
        return self._tables.arrow("anchors")

    def sql(self, query: str, **parameters: Any) -> pa.Table:
        """Answer one SELECT over ``examples``, ``visits``, ``holdout``, ``canaries`` and ``anchors``, in place."""
        return self._tables.sql(query, **parameters)

    def label_issues(self, *, top: int | None = None, by: Sequence[Any] | None = None) -> pa.Table:
        """Which labels are wrong, most suspicious first; or, with ``by``, how many in each group.

        Args:
            top: how many rows; all by default.
            by: one value per example, in the order of :meth:`examples` (annotator, vendor, camera).
        """
        import pyarrow as pa

        if by is not None:
            return pa.table(group_issues(self.table, by))
        return pa.table(label_issues(_with_holdout(self.table, self._tables), self.class_names, top=top))

    def class_issues(self) -> pa.Table:
        """Expected error rate of each class with an interval, what it is confused with, and a verdict."""
        import pyarrow as pa

        held = self.info.get("held_out_per_class")
        return pa.table(class_issues(self.table, class_names=self.class_names, held_out=held))

    def duplicates(self) -> pa.Table:
        """Pairs of examples that are the same or nearly: differing labels first, then pairs across the hold-out.

        Raises:
            SgoifError: The run has no sketches to compare.
        """
        has_holdout = SKETCH_COLUMNS[0] in self._tables.columns("holdout")
        if SKETCH_COLUMNS[0] not in self.sql("select * from examples limit 0").column_names:
            raise SgoifError("this run has no sketches to compare examples by; `sgoif scan` makes them.")
        return find_duplicates(self.sql, max_bits=self.info["nearly_same"], has_holdout=has_holdout)

    def worst(self, count: int = 20, by: str | None = None) -> dict[str, NDArray[Any]]:
        """The rows with the largest value of a column, most suspicious first.

        Without a column, by ``p_mislabeled`` where the run could be calibrated, else by ``worst``.
        """
        name = by or ("p_mislabeled" if self.is_calibrated else "worst")
        order = np.argsort(-np.nan_to_num(self.table[name].astype(np.float64), nan=-np.inf), kind="stable")[:count]
        return {name: column[order] for name, column in self.table.items()}


def load(path: str | os.PathLike[str]) -> Run:
    """Open a run written by :func:`sgoif.watch`, an audit or a scan: a folder or any fsspec URL."""
    tables = FileTables(path)
    facts, writing = tables.files.info.get("facts", {}), dict(tables.files.info)
    writing.pop("facts", None)
    writing["writing_faults"] = writing.pop("faults", {})
    return Run({**writing, **facts}, tables)


def _with_holdout(examples: Columns, tables: Tables) -> Columns:
    """Add the hold-out's own rows, where their labels are not verified; columns they lack are empty."""
    held = tables.columns("holdout")
    if not held or held["trusted"].all():
        return examples
    held = {name: column[~held["trusted"].astype(bool)] for name, column in held.items()}
    count = len(held["id"])
    rows: dict[str, NDArray[Any]] = {}
    for name, column in examples.items():
        if name in held:
            extra = held[name]
        elif name.startswith("suggested_label"):
            extra = np.full(count, -1)
        elif name in ("harm", "worst"):
            extra = held[f"{name}_solved"]
        elif name in ("n_visits", "suggested_share"):
            extra = np.ones(count, dtype=column.dtype)
        else:
            extra = np.full(count, np.nan)
        rows[name] = np.concatenate([column, extra])
    rows["source"] = np.repeat(np.array(["train", "holdout"]), [len(examples["id"]), count])
    return rows
