"""Decisions about training sequences: a JSONL file that was filled in becomes a manifest of what to train on.

Sequences have no classes, so a decision is to keep one, to drop it, to edit its completion, or that it is unsure, and
the manifest's labels are empty.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgoif.errors import SgoifError
from sgoif.files.tables import read_csv_rows, read_json_lines, write_csv, write_parquet
from sgoif.review.decisions import NO_CLASS, Decision, latest
from sgoif.review.merge import Outcome, merge

if TYPE_CHECKING:
    import pyarrow as pa

    from sgoif.findings.suspects import Sql

__all__ = ["DecidedSequences", "decide_sequences", "read_sequence_decisions", "write_sequence_manifest"]

_KINDS = ("keep", "drop", "edit", "unsure")


@dataclass(frozen=True, slots=True)
class DecidedSequences:
    """What people decided about a run's sequences."""

    outcomes: tuple[Outcome, ...]  # of sequences of the run
    strangers: tuple[str, ...]  # ids that the run does not know
    num_sequences: int
    num_decisions: dict[str, int]  # by person

    @property
    def disagreements(self) -> list[str]:
        """Ids of the sequences that people disagree about; they are kept."""
        return [item.id for item in self.outcomes if item.is_disputed]

    def counts(self) -> dict[str, int]:
        """How many sequences there are by what becomes of them."""
        found = {kind: sum(item.action == kind for item in self.outcomes) for kind in _KINDS}
        return {**found, "unreviewed": self.num_sequences - len(self.outcomes)}


def read_sequence_decisions(path: str | os.PathLike[str]) -> list[Decision]:
    """Read a JSONL file of ``sgoif export --to jsonl`` with its decisions filled in, or a CSV file with such columns.

    Rows without a decision are passed over. An edit has the corrected completion in ``completion``. Columns
    ``reviewer``, ``note``, ``decided_at``, ``list``, the page's, and ``content``, a hash of the completion that was
    shown, may stand beside; without a reviewer, the file's name is the person's.

    Raises:
        SgoifError: a row cannot be understood; the message tells its line.
    """
    found = []
    for line, row in _read_rows(Path(path)):
        kind = str(row.get("decision") or "").strip().casefold()
        if not kind:
            continue
        if kind not in _KINDS:
            raise SgoifError(
                f"line {line} of '{path}': a decision about a sequence is one of {', '.join(_KINDS)}, got {kind!r}."
            )
        given = row.get("given_label")
        if given not in (None, "", NO_CLASS, str(NO_CLASS)):
            raise SgoifError(
                f"line {line} of '{path}' is about a label, {given!r}, and this run judged sequences; pass a file of "
                "decisions about these."
            )
        if row.get("id") is None:
            raise SgoifError(f"line {line} of '{path}': there is a decision, but no id.")
        completion = str(row.get("completion") or "") if kind == "edit" else ""
        if kind == "edit" and not completion.strip():
            raise SgoifError(
                f"line {line} of '{path}': an edit needs the corrected text in `completion`; to leave the "
                "sequence out, write drop."
            )
        names = ("reviewer", "note", "decided_at", "content", "list")
        told = {name: str(row.get(name) or "").strip() for name in names}
        found.append(
            Decision(
                str(row["id"]),
                NO_CLASS,
                kind,
                note=told["note"],
                decided_at=told["decided_at"],
                reviewer=told["reviewer"] or Path(path).stem,
                content=told["content"],
                list_id=told["list"],
                completion=completion,
            )
        )
    return latest(found)


def _read_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    if not path.is_file():
        raise SgoifError(
            f"'{path}' is no file; pass the decisions.jsonl of the review page, or the JSONL file of `sgoif "
            "export` with its decisions filled in."
        )
    if path.suffix == ".csv":
        yield from read_csv_rows(path, ("id", "decision"))
        return
    if path.suffix != ".jsonl":
        raise SgoifError(f"'{path}' must end in .jsonl or .csv.")
    with path.open(encoding="utf-8-sig") as file:
        yield from read_json_lines(file, path)


def decide_sequences(sql: Sql, decisions: Sequence[Decision]) -> DecidedSequences:
    """Match decisions with the sequences of a run: a strict majority wins, else a sequence is kept and disputed."""
    merged = merge(decisions)
    asked = [item.id for item in merged.outcomes]
    known = set(
        sql("select id::varchar as id from examples where id::varchar in (select unnest($ids::varchar[]))", ids=asked)[
            "id"
        ].to_pylist()
    )
    people: dict[str, int] = {}
    for item in decisions:
        people[item.reviewer] = people.get(item.reviewer, 0) + 1
    return DecidedSequences(
        tuple(item for item in merged.outcomes if item.id in known),
        tuple(item.id for item in merged.outcomes if item.id not in known),
        int(sql("select count(*) as n from examples")["n"][0].as_py()),
        people,
    )


def write_sequence_manifest(sql: Sql, decided: DecidedSequences, path: str | os.PathLike[str]) -> None:
    """Write one row per sequence of the run, as Parquet or CSV: what ``sgoif.cleaned`` reads.

    Raises:
        SgoifError: the name ends otherwise.
    """
    import pyarrow as pa

    suffix = Path(path).suffix.lower()
    if suffix not in (".parquet", ".csv"):
        raise SgoifError(f"'{path}' must end in .parquet or .csv.")
    ids = sql("select id from examples")["id"].combine_chunks()
    by_id = {item.id: item for item in decided.outcomes}
    outcomes = [by_id.get(str(value)) for value in ids.to_pylist()]
    empty = pa.nulls(len(ids), pa.int32())
    table = pa.table(
        {
            **{"id": ids, "given_label": empty, "label": empty},
            "action": pa.array(["unreviewed" if item is None else item.action for item in outcomes], pa.string()),
            "source": pa.array(["train"] * len(ids), pa.string()),
            "reviewers": _texts([None if item is None else ", ".join(item.reviewers) for item in outcomes]),
            "decided_at": _texts([None if item is None else item.decided_at for item in outcomes]),
            "note": _texts([None if item is None else item.note for item in outcomes]),
            "completion": _texts([None if item is None else item.completion for item in outcomes]),
            "content": _texts([None if item is None else item.content for item in outcomes]),
        }
    )
    write_parquet(table, str(path)) if suffix == ".parquet" else write_csv(table, str(path))


def _texts(values: Sequence[str | None]) -> pa.Array:
    import pyarrow as pa

    return pa.array([value or None for value in values], pa.string())
