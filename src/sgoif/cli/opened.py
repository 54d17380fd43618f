"""A run as the commands read it: what its ``run.json`` says, and rows of its tables through DuckDB, in place.

Runs differ: one that was not calibrated has no probabilities, one that was added up from its visits has fewer columns,
one that was killed has no examples at all. Columns that a run lacks are empty here, so that commands need not ask.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
from numpy.typing import NDArray

from sgoif.adaptors import label_issues
from sgoif.adaptors.label import class_name
from sgoif.errors import SgoifError
from sgoif.store import RunFiles

__all__ = ["FLAGGED", "OpenRun", "find_class", "open_run", "some_of"]

FLAGGED = 0.5  # from this p_mislabeled on a label is more likely wrong than right

Columns = dict[str, NDArray[Any]]

_WHOLE = {"given_label": -1, "suggested_label": -1, "suggested_label_2": -1, "suggested_label_3": -1, "n_visits": 0}
_NUMBERS = (
    *("p_mislabeled", "p_mislabeled_low", "p_mislabeled_high", "harm", "worst"),
    *("confidence", "margin", "suggested_share"),
)
_ON_HOLDOUT = {"harm": "harm_solved", "worst": "worst_solved"}  # a hold-out example is scored by solving alone
_CONSTANT_ON_HOLDOUT = {"n_visits": "1::bigint", "suggested_share": "1::double"}


class OpenRun:
    """A run opened for reading.

    Args:
        files: its files.
        url: as the user wrote it.
    """

    def __init__(self, files: RunFiles, url: str) -> None:
        self.files, self.url = files, url

    @property
    def info(self) -> Mapping[str, Any]:
        """All of ``run.json``."""
        return self.files.info

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the training said about the run."""
        found = self.info.get("facts")
        return found if isinstance(found, dict) else {}

    @property
    def class_names(self) -> list[str]:
        """Names of the classes; empty where they have none."""
        names = self.facts.get("class_names")
        return [str(name) for name in names] if isinstance(names, list) else []

    def name_of(self, label: Any) -> str:
        """A class's name, or its number; nothing for no class."""
        return "" if label is None or label < 0 else class_name(int(label), self.class_names)

    def with_names(self, table: pa.Table, kinds: Sequence[str]) -> pa.Table:
        """Put the names of classes (``given_name``) beside their numbers (``given_label``)."""
        for kind in kinds:
            place = table.column_names.index(f"{kind}_label") + 1
            names = [self.name_of(label) for label in table[f"{kind}_label"].to_pylist()]
            table = table.add_column(place, f"{kind}_name", pa.array(names, pa.string()))
        return table

    def label_of(self, name: str) -> int:
        """Find a class by its name or number.

        Raises:
            SgoifError: There is no such class; the message names some that there are.
        """
        found = find_class(name, self.class_names, self.num_classes)
        if found is None:
            raise SgoifError(f"this run has no class {name!r}; it has {some_of(self.class_names, self.num_classes)}.")
        return found

    @cached_property
    def num_classes(self) -> int:
        """How many classes there are, as far as the run knows."""
        held = self.facts.get("held_out_per_class")
        return max(len(self.class_names), len(held) if isinstance(held, list) else 0, self._largest_label() + 1)

    @cached_property
    def num_examples(self) -> int:
        """Training examples that were added up."""
        return int(self.one("select count(*) as n from examples")["n"])

    @cached_property
    def num_judged(self) -> int:
        """Those of them that have a probability."""
        return int(self.one("select count(p_mislabeled) as n from examples")["n"])

    @property
    def is_calibrated(self) -> bool:
        """Whether the run knows probabilities."""
        return self.num_judged > 0

    @cached_property
    def held_columns(self) -> set[str]:
        """Columns of the table of hold-out examples."""
        return set(self.files.sql("select * from holdout limit 0").column_names)

    @cached_property
    def columns(self) -> set[str]:
        """Columns of the table of examples."""
        return set(self.files.sql("select * from examples limit 0").column_names)

    def one(self, query: str, **parameters: Any) -> dict[str, Any]:
        """The only row of an answer."""
        rows: list[dict[str, Any]] = self.files.sql(query, **parameters).to_pylist()
        return rows[0]

    def need_examples(self) -> None:
        """Raise where the run has no examples to show, and say what to do."""
        if self.num_examples:
            return
        if self.info.get("state") == "finished":
            raise SgoifError(f"{self.url!r} finished without a single scored example; see `sgoif info {self.url}`.")
        raise SgoifError(
            f"{self.url!r} is still running or was killed, and its examples are added up when it ends. Wait for it or "
            "resume the training; or add up what was written: "
            f'`python -c "import sgoif.store as s; s.write_examples(s.RunFiles({self.url!r}))"`.'
        )

    def need_probabilities(self) -> None:
        """Raise where the run was not calibrated, and say why."""
        self.need_examples()
        if not self.is_calibrated:
            reason = self.facts.get("calibration_error") or "its hold-out was too small or had no second fold"
            raise SgoifError(
                f"{self.url!r} was not calibrated ({reason}), so it has no probabilities. `sgoif issues` ranks its "
                "labels; for probabilities run it again with a larger hold-out."
            )

    def rates_columns(self) -> Columns:
        """What error rates by class need of every example."""
        labels = [_whole(name, self.columns) for name in ("given_label", "suggested_label")]
        p = [_number(name, self.columns) for name in ("p_mislabeled", "p_mislabeled_low", "p_mislabeled_high")]
        table = self.files.sql(f"select {', '.join(labels + p)} from examples where given_label >= 0")
        return {name: table[name].to_numpy(zero_copy_only=False) for name in table.column_names}

    def worst(self, top: int | None = 50, *, given: int | None = None, min_p: float | None = None) -> pa.Table:
        """The most suspicious labels as ``Run.label_issues`` shows them, hold-out examples among them.

        Only the rows that are shown leave DuckDB.

        Args:
            top: how many; None for all.
            given: only those labelled as this class.
            min_p: only those at least this probably wrong.
        """
        key = "p_mislabeled" if self.is_calibrated else "worst"
        where = ["given_label >= 0"]
        parameters: dict[str, Any] = {}
        if given is not None:
            where, parameters["given"] = [*where, "given_label = $given"], given
        if min_p is not None:
            where, parameters["min_p"] = [*where, "p_mislabeled >= $min_p"], min_p
        limit = "" if top is None else f" limit {int(top)}"
        table = self.files.sql(
            f"select * from ({self._selected()}) where {' and '.join(where)} "
            f"order by {key} desc nulls last, source desc, id{limit}",
            **parameters,
        )
        rows = {name: table[name].to_numpy(zero_copy_only=False) for name in table.column_names}
        if not self.is_calibrated:
            rows = {name: column for name, column in rows.items() if not name.startswith("p_mislabeled")}
        return pa.table(label_issues(rows, self.class_names))

    def _selected(self) -> str:
        """Training examples, and hold-out examples whose labels are not verified, with the same columns."""
        id_type = "bigint" if self._ids_are_numbers else "varchar"
        fields = [_whole(name, self.columns) for name in _WHOLE] + [_number(name, self.columns) for name in _NUMBERS]
        selected = f"select id::{id_type} as id, {', '.join(fields)}, 'train' as source from examples"
        if not self.files.parts("holdout") or not self.is_calibrated:
            return selected
        held = []
        for name in (*_WHOLE, *_NUMBERS):
            if name in _CONSTANT_ON_HOLDOUT:
                held.append(f'{_CONSTANT_ON_HOLDOUT[name]} as "{name}"')
            elif name in _WHOLE:
                held.append(_whole(name, self.held_columns))
            else:
                held.append(_number(name, self.held_columns, _ON_HOLDOUT.get(name)))
        return (
            f"{selected} union all select id::{id_type} as id, {', '.join(held)}, 'holdout' as source from holdout "
            "where not coalesce(trusted, false)"
        )

    @property
    def _ids_are_numbers(self) -> bool:
        kinds = [self.files.id_kind("examples")]
        kinds += [self.files.id_kind("holdout")] if self.files.parts("holdout") else []
        return set(kinds) == {"int"}

    def _largest_label(self) -> int:
        found = self.one("select max(given_label) as a, max(suggested_label) as b from examples")
        return max(-1 if value is None else int(value) for value in found.values())


def open_run(url: str | os.PathLike[str]) -> OpenRun:
    """Open a run: a folder or any fsspec URL."""
    return OpenRun(RunFiles(url), str(url))


def find_class(text: str, names: Sequence[str], num_classes: int) -> int | None:
    """Read a class as a person writes it: its name, its name in other letters' case, or its number.

    >>> find_class(" Dog", ["cat", "dog"], 2), find_class("1", ["cat", "dog"], 2), find_class("2", ["cat", "dog"], 2)
    (1, 1, None)
    """
    wanted = text.strip()
    if wanted in names:
        return list(names).index(wanted)
    alike = [i for i, name in enumerate(names) if name.strip().casefold() == wanted.casefold()]
    if len(alike) == 1:
        return alike[0]
    number = int(wanted) if wanted.isascii() and wanted.isdigit() else -1
    return number if 0 <= number < num_classes else None


def some_of(names: Sequence[str], num_classes: int, most: int = 12) -> str:
    """List classes for a message."""
    if not names:
        return f"classes 0 to {num_classes - 1}"
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _whole(name: str, present: set[str]) -> str:
    value = f'coalesce("{name}", {_WHOLE[name]})' if name in present else f"({_WHOLE[name]})"
    return f'{value}::bigint as "{name}"'


def _number(name: str, present: set[str], alias: str | None = None) -> str:
    stored = alias or name
    return f'"{stored}"::double as "{name}"' if stored in present else f'null::double as "{name}"'
