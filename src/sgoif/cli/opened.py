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

from sgoif.doubts import doubts_of
from sgoif.errors import SgoifError
from sgoif.findings import label_issues
from sgoif.findings.label import class_name
from sgoif.findings.names import add_class_names
from sgoif.findings.suspects import FLAGGED, rate_columns, suspects
from sgoif.review.naming import find_class, some_of
from sgoif.review.verify import read_checked
from sgoif.store import RunFiles
from sgoif.store.holding import describe_unclosed
from sgoif.summary import why_no_probabilities
from sgoif.tables import arrow_table
from sgoif.types import Columns

__all__ = ["FLAGGED", "OpenRun", "open_run"]


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
    def about(self) -> Mapping[str, Any]:
        """What the training said, and how it ended, as ``Run.info`` has both."""
        return {**self.facts, "state": self.info.get("state"), "checked": self.checked}

    @property
    def checked(self) -> dict[str, Any] | None:
        """What checked labels say of the run as it is now; None where nobody checked any."""
        return self._checked[0]

    @property
    def why_not_checked(self) -> str | None:
        """Why what was checked is not used any more."""
        return self._checked[1]

    @cached_property
    def _checked(self) -> tuple[dict[str, Any] | None, str | None]:
        return read_checked(self.url, self.files.sql)

    @cached_property
    def class_names(self) -> list[str]:
        """Names of the classes; empty where they have none."""
        names = self.facts.get("class_names")
        return [str(name) for name in names] if isinstance(names, list) else []

    def name_of(self, label: Any) -> str:
        """A class's name, or its number; nothing for no class."""
        return "" if label is None or label < 0 else class_name(int(label), self.class_names)

    def with_names(self, table: pa.Table, kinds: Sequence[str]) -> pa.Table:
        """Put the names of classes (``given_name``) beside their numbers (``given_label``), else null."""
        return add_class_names(table, self.class_names, kinds)

    def label_of(self, name: str) -> int:
        """Find a class by its name or number.

        Raises:
            SgoifError: There is no such class; the message names some that there are.
        """
        found = find_class(name, self.class_names, self.num_classes)
        if found is None:
            raise SgoifError(f"this run has no class {name!r}; it has {some_of(self.class_names, self.num_classes)}.")
        return found

    @property
    def held_out_per_class(self) -> list[int] | None:
        """Hold-out examples of each class; None where the run does not say."""
        held = self.facts.get("held_out_per_class")
        if not isinstance(held, list) or not all(type(number) is int and 0 <= number < 2**62 for number in held):
            return None
        return held

    @cached_property
    def num_classes(self) -> int:
        """How many classes there are, as far as the run knows."""
        held = self.facts.get("held_out_per_class") or self.facts.get("held_out_per_tag")
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
        raise SgoifError(describe_unclosed(self.url, self.info))

    def need_probabilities(self) -> None:
        """Raise where the run has no probabilities, and say why."""
        self.need_examples()
        if not self.is_calibrated:
            reason = why_no_probabilities(self.about)
            raise SgoifError(f"{self.url!r} has no probabilities: {reason}. `sgoif issues` ranks its labels without.")

    def need_trust(self, *, needs_holdout: bool = True) -> None:
        """Raise where the run noticed something by which its figures cannot be trusted.

        A hold-out that was trained on spoils what the run thinks, not what people say of a sample of all examples.
        """
        doubts = [doubt for doubt in doubts_of(self.about, self.num_examples) if doubt.spoils]
        spoiled = [doubt.text for doubt in doubts if needs_holdout or not doubt.is_of_holdout]
        if spoiled:
            raise SgoifError(f"the figures of {self.url!r} cannot be trusted: {'; and '.join(spoiled)}.")

    def need_checked_labels(self) -> None:
        """Raise where nobody checked any label: what the run says of the whole is an estimate then."""
        if self.checked is None:
            why = self.why_not_checked or "nobody has checked labels, and what the run says itself is an estimate"
            raise SgoifError(f"{why}. Check some, in ten minutes: `sgoif verify {self.url} --page check.html`.")

    def need_verified_holdout(self) -> None:
        """Raise where the hold-out was not verified: a sample of all labels is too small to judge each class."""
        if not self.facts.get("trusted"):
            raise SgoifError("classes are judged by a verified hold-out, and this run has none: see `sgoif holdout`.")

    def need_totals(self) -> None:
        """Raise where probabilities rank, and their sum is not to be believed."""
        doubt = self.facts.get("no_totals_reason")
        if doubt:
            raise SgoifError(f"{self.url!r} gives no numbers of errors: {doubt}. Look at a sample: `sgoif report`.")

    def rates_columns(self) -> Columns:
        """What error rates by class need of every example."""
        return rate_columns(self.files.sql)

    def worst(self, top: int | None = 50, *, given: int | None = None, min_p: float | None = None) -> pa.Table:
        """The most suspicious labels as ``Run.label_issues`` shows them, hold-out examples among them.

        Only the rows that are shown leave DuckDB.

        Args:
            top: how many; None for all.
            given: only those labelled as this class.
            min_p: only those at least this probably wrong.
        """
        rows = suspects(self.files.sql, top=top, given=given, min_p=min_p)
        return arrow_table(label_issues(rows, self.class_names))

    def _largest_label(self) -> int:
        found = self.one("select max(given_label) as a, max(suggested_label) as b from examples")
        return max(-1 if value is None else int(value) for value in found.values())


def open_run(url: str | os.PathLike[str]) -> OpenRun:
    """Open a run: a folder or any fsspec URL."""
    return OpenRun(RunFiles(url), str(url))
