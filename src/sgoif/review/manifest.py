"""What becomes of every example of a run: the manifest, one row each, training and hold-out.

Decisions are few and examples are many. The outcomes are held in memory; the run's rows pass by one row group at a
time, are joined with the outcomes in DuckDB and written as they come. Classes, or groups of the user's own, that would
lose many of their examples are a reason to look again.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgoif.errors import SgoifError
from sgoif.files.tables import replacing, write_csv_rows
from sgoif.findings.label import class_name
from sgoif.findings.suspects import columns_of, unverified
from sgoif.review.merge import Merged, Outcome

if TYPE_CHECKING:
    import pyarrow as pa

    from sgoif.store import RunFiles

__all__ = ["Applied", "Loss", "Settled", "class_losses", "count_left_out", "group_losses", "settle", "write_manifest"]

MANY = 0.2  # share of a class or group

_TABLES = {"examples": "train", "holdout": "holdout"}
_JOINED = """
select rows.id, rows.given_label, given.name as given_name, kept.label, named.name as label_name, decided.labels,
       coalesce(decided.action, 'unreviewed') as action, $source as source, rows.p_mislabeled,
       decided.reviewers, decided.decided_at, decided.note, decided.content
from (select *, $source as source from piece where not coalesce(trusted, false)) as rows
left join decided on rows.id::varchar = decided.id and rows.given_label = decided.given_label
    and rows.source = decided.source
left join lateral (
    select case when decided.id is null then rows.given_label else decided.label end as label
) as kept on true
left join classes as given on rows.given_label = given.number
left join classes as named on kept.label = named.number
order by rows.place
"""


@dataclass(frozen=True, slots=True)
class Applied:
    """An outcome that is about an example of the run, with what the run thought of it."""

    outcome: Outcome
    source: str  # train or holdout
    p_mislabeled: float | None


@dataclass(frozen=True, slots=True)
class Settled:
    """Outcomes matched with a run: those that apply, and those that do not."""

    applied: tuple[Applied, ...]
    strangers: tuple[Outcome, ...]  # the run has no such id
    changed: tuple[Outcome, ...]  # the example has another label in the run
    num_examples: int  # of the run, training and hold-out as given
    merged: Merged

    def counts(self) -> dict[str, int]:
        """How many examples there are by what becomes of them."""
        found = Counter(item.outcome.action for item in self.applied)
        return {**found, "unreviewed": self.num_examples - len(self.applied)}


def settle(files: RunFiles, merged: Merged) -> Settled:
    """Find the examples that outcomes are about.

    An id that is both a training and a hold-out example's stands for the training example: give the hold-out ids of its
    own (:func:`sgoif.with_ids`) to review it.
    """
    ids = [item.id for item in merged.outcomes]
    rows = files.sql(
        f"select * from ({_everything(files)}) where id in (select unnest($ids::varchar[])) order by source", ids=ids
    ).to_pylist()
    found = {(row["id"], row["given_label"]): row for row in rows}  # train comes after holdout
    known = {row["id"] for row in rows}
    applied: list[Applied] = []
    strangers: list[Outcome] = []
    changed: list[Outcome] = []
    for item in merged.outcomes:
        row = found.get((item.id, item.given_label))
        if row is not None:
            applied.append(Applied(item, row["source"], row["p_mislabeled"]))
        else:
            (changed if item.id in known else strangers).append(item)
    total = files.sql(f"select count(*) as n from ({_everything(files)})")["n"][0].as_py()
    return Settled(tuple(applied), tuple(strangers), tuple(changed), total, merged)


def _everything(files: RunFiles) -> str:
    """Select id (as text), given_label, p_mislabeled and source of all examples, but for verified labels."""
    columns = "id::varchar as id, given_label, {p} as p_mislabeled, '{source}' as source"
    train = columns.format(p="p_mislabeled::double", source="train")
    held = columns.format(p="p_mislabeled::double" if _judges_holdout(files) else "null::double", source="holdout")
    return (
        f"select {train} from examples where {unverified(files.sql)} union all "
        f"select {held} from holdout where not coalesce(trusted, false)"
    )


def count_left_out(sql: Callable[..., pa.Table]) -> tuple[int, int]:
    """Count the examples that are judged nowhere: those whose labels are verified, and those without a class."""
    held, own, unlabelled = (
        int(sql(f"select count(*) as n from {rows}")["n"][0].as_py())
        for rows in (
            "holdout where coalesce(trusted, false)",
            f"examples where not {unverified(sql)}",
            "examples where coalesce(given_label, -1) < 0",
        )
    )
    return held + own, unlabelled


def write_manifest(
    files: RunFiles, settled: Settled, path: str | os.PathLike[str], class_names: Sequence[str] = ()
) -> None:
    """Write the manifest as Parquet or CSV, by the end of its name; an older file is replaced when it is complete.

    Raises:
        SgoifError: The name ends otherwise.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in (".parquet", ".csv"):
        raise SgoifError(f"'{path}' must end in .parquet or .csv.")
    pieces = _pieces(files, settled, class_names)
    if suffix == ".csv":
        write_csv_rows(path, _schema(files).names, (row for piece in pieces for row in _cells(piece)))
        return
    import pyarrow.parquet as pq

    schema = _schema(files).with_metadata(_facts(files, settled))
    with replacing(path) as file, pq.ParquetWriter(file, schema) as writer:
        for piece in pieces:
            writer.write_table(piece.cast(schema))


def _pieces(files: RunFiles, settled: Settled, class_names: Sequence[str]) -> Iterator[pa.Table]:
    """Rows of the manifest, a row group of the run at a time."""
    import duckdb
    import pyarrow as pa

    schema = _schema(files)
    with duckdb.connect(":memory:", config={"threads": "1"}) as connection:
        connection.register("decided", _tabulate(settled))
        connection.register("classes", _classes(files, settled, class_names))
        for table, source in _TABLES.items():
            for rows in files.batches(table, _columns(files, table)):
                connection.register("piece", _piece(rows))
                found = connection.sql(_JOINED, params={"source": source}).to_arrow_table()
                connection.unregister("piece")
                yield pa.table([found[field.name].cast(field.type) for field in schema], schema=schema)


def _piece(rows: pa.Table) -> pa.Table:
    """The columns that are joined, with places to keep the order by; those that a table lacks are empty."""
    import numpy as np
    import pyarrow as pa

    if "p_mislabeled" not in rows.column_names:
        rows = rows.append_column("p_mislabeled", pa.nulls(len(rows), pa.float64()))
    if "trusted" not in rows.column_names:
        rows = rows.append_column("trusted", pa.nulls(len(rows), pa.bool_()))
    return rows.append_column("place", pa.array(np.arange(len(rows))))


def _columns(files: RunFiles, table: str) -> list[str]:
    present = columns_of(files.sql, table)
    return [name for name in ("id", "given_label", "trusted", "p_mislabeled") if name in present]


def _judges_holdout(files: RunFiles) -> bool:
    return "p_mislabeled" in files.sql("select * from holdout limit 0").column_names


def _tabulate(settled: Settled) -> pa.Table:
    import pyarrow as pa

    outcomes = [item.outcome for item in settled.applied]
    columns: dict[str, Any] = {
        "id": pa.array([item.id for item in outcomes], pa.string()),
        "given_label": pa.array([item.given_label for item in outcomes], pa.int32()),
        "source": pa.array([item.source for item in settled.applied], pa.string()),
        "action": pa.array([item.action for item in outcomes], pa.string()),
        "label": pa.array([item.label for item in outcomes], pa.int32()),
        "labels": pa.array(
            [list(item.labels) if item.action == "several" else None for item in outcomes], pa.list_(pa.int32())
        ),
        "reviewers": pa.array([", ".join(item.reviewers) for item in outcomes], pa.string()),
    }
    texts = {name: [getattr(item, name) or None for item in outcomes] for name in ("decided_at", "note", "content")}
    return pa.table({**columns, **{name: pa.array(text, pa.string()) for name, text in texts.items()}})


def _classes(files: RunFiles, settled: Settled, class_names: Sequence[str]) -> pa.Table:
    """Names of all classes that there may be; a class without a name goes by its number."""
    import pyarrow as pa

    given = files.sql(f"select distinct given_label as n from ({_everything(files)}) where given_label >= 0")["n"]
    decided = {item.outcome.label for item in settled.applied if item.outcome.label is not None}
    numbers = sorted({*range(len(class_names)), *given.to_pylist(), *decided})
    names = pa.array([class_name(number, class_names) for number in numbers], pa.string())
    return pa.table({"number": pa.array(numbers, pa.int32()), "name": names})


def _schema(files: RunFiles) -> pa.Schema:
    import pyarrow as pa

    kinds = {files.id_kind("examples")} | ({files.id_kind("holdout")} if files.parts("holdout") else set())
    text = [(name, pa.string()) for name in ("reviewers", "decided_at", "note", "content")]
    return pa.schema(
        [
            ("id", pa.int64() if kinds == {"int"} else pa.string()),
            ("given_label", pa.int32()),
            ("given_name", pa.string()),
            ("label", pa.int32()),
            ("label_name", pa.string()),
            ("labels", pa.list_(pa.int32())),
            ("action", pa.string()),
            ("source", pa.string()),
            ("p_mislabeled", pa.float64()),
            *text,
        ]
    )


def _cells(piece: pa.Table) -> Iterator[list[Any]]:
    for row in zip(*(column.to_pylist() for column in piece.columns)):
        yield ["|".join(map(str, value)) if isinstance(value, list) else value for value in row]


def _facts(files: RunFiles, settled: Settled) -> dict[str, str]:
    """Where a manifest comes from, for those who find it later."""
    from sgoif.store.info import environment, now

    merged = settled.merged
    facts = {
        "version": environment()["libraries"].get("sgoif", "unknown"),
        "run": files.place.url,
        "lists": merged.list_ids,
        "reviewers": merged.reviewers,
        "counts": settled.counts(),
        "time": now(),
    }
    return {f"sgoif.{name}": value if isinstance(value, str) else json.dumps(value) for name, value in facts.items()}


@dataclass(frozen=True, slots=True)
class Loss:
    """A class or group, and how many of its examples are dropped or relabelled away."""

    about: Any  # a class's number, or a value of the user's own column
    num_lost: int
    num_examples: int


def class_losses(files: RunFiles, settled: Settled, many: float = MANY) -> list[Loss]:
    """Classes that lose more than a share of their examples, the worst first."""
    rows = files.sql(f"select given_label, count(*) as n from ({_everything(files)}) group by given_label")
    sizes = dict(zip(rows["given_label"].to_pylist(), rows["n"].to_pylist(), strict=True))
    return _find_large(Counter(item.given_label for item in _find_lost(settled)), sizes, many)


def group_losses(settled: Settled, own: pa.Table, by: str, many: float = MANY) -> list[Loss]:
    """The same by a column of the user's own table, one row per example; ``id`` and ``by`` hold text."""
    lost = {item.id for item in _find_lost(settled)}
    sizes: Counter[Hashable] = Counter()
    gone: Counter[Hashable] = Counter()
    for batch in own.to_batches():
        groups = batch.column(by).to_pylist()
        sizes.update(groups)
        gone.update(group for id, group in zip(batch.column("id").to_pylist(), groups, strict=True) if id in lost)
    return _find_large(gone, sizes, many)


def _find_lost(settled: Settled) -> Iterator[Outcome]:
    return (item.outcome for item in settled.applied if item.outcome.label != item.outcome.given_label)


def _find_large(lost: Mapping[Any, int], sizes: Mapping[Any, int], many: float) -> list[Loss]:
    found = [Loss(about, number, sizes[about]) for about, number in lost.items() if number > many * sizes[about]]
    return sorted(found, key=lambda item: -item.num_lost / item.num_examples)
