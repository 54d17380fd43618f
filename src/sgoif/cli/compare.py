"""``sgoif compare``: what became of the labels that an older run doubted, and which ones are doubted anew.

A finding is a label, not an example: an example that was relabelled is resolved, and if its new label is doubted too,
that is a new finding. Classes are matched by name, since their numbers may change when classes are added. Only examples
that both runs have can be resolved or new, wherever they stand: what one run trained on, the other may have held out.

Flagged rows are held; of the rest, one row group at a time is looked at, and DuckDB spills what it joins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sgoif.cli.joining import joining
from sgoif.cli.output import clean, count, emit_json, interval, percent, print_lines, print_table, shorten
from sgoif.cli.run import Run, name_of, need_probabilities, open_run, read_one
from sgoif.errors import SgoifError
from sgoif.findings.suspects import FLAGGED, columns_of

__all__ = ["Comparison", "compare_runs", "show_comparison"]

RELABELLED, CLEARED, DOUBTED = "relabelled", "no longer doubted", "newly doubted"
_ENDS = ("p_mislabeled_low", "p_mislabeled_high")
_KINDS = ("resolved", "still", "new", "gone", "added")
_LEAST_COMMON = 0.1  # of the smaller run: with fewer common ids the two are runs of different data
_MOST_RELABELLED = 0.5  # of the common ids: with more other labels the ids stand for other examples
_LABELS = pa.schema([("id", pa.string()), ("given", pa.string()), ("place", pa.int8())])


@dataclass(frozen=True, slots=True)
class Comparison:
    """Findings of two runs: ``resolved``, ``still`` and ``new`` among the examples of both, with a column ``how``."""

    resolved: pa.Table
    still: pa.Table
    new: pa.Table
    gone: pa.Table  # flagged in the old run, which alone has these examples
    added: pa.Table  # flagged in the new run, which alone has these examples
    in_both: int
    only_in_old: int
    only_in_new: int

    def counts(self) -> dict[str, Any]:
        """How many there are of each kind, and why."""
        return {
            "in_both": self.in_both,
            "only_in_old": self.only_in_old,
            "only_in_new": self.only_in_new,
            "resolved": len(self.resolved),
            "still_flagged": len(self.still),
            "new": len(self.new),
            "gone": len(self.gone),
            "added": len(self.added),
            "resolved_by": {how: _number(self.resolved, how) for how in (CLEARED, RELABELLED)},
            "new_by": {how: _number(self.new, how) for how in (DOUBTED, RELABELLED)},
        }


def show_comparison(old_url: str, new_url: str, *, top: int | None = 50, as_json: bool = False) -> None:
    """Print what changed between two runs."""
    old, new = open_run(old_url), open_run(new_url)
    found = compare_runs(old, new)
    counts = found.counts()
    if as_json:
        document = {name: getattr(found, name).to_pylist() for name in _KINDS}
        emit_json({"command": "compare", "format": 1, "old": old.url, "new": new.url, **counts, "findings": document})
        return
    by, anew = counts["resolved_by"], counts["new_by"]
    lines = [
        f"{count(found.in_both, 'example')} in both runs, {count(found.only_in_old)} only in {clean(old.url)}, "
        f"{count(found.only_in_new)} only in {clean(new.url)}",
        f"{count(counts['resolved'])} resolved ({count(by[CLEARED])} no longer doubted, {count(by[RELABELLED])} "
        "relabelled)",
        f"{count(counts['still_flagged'])} still flagged",
        f"{count(counts['new'])} new ({count(anew[DOUBTED])} newly doubted, {count(anew[RELABELLED])} relabelled)",
    ]
    if counts["gone"] or counts["added"]:
        lines.append(
            f"Flagged in one run only, since the other does not have the example: {count(counts['gone'])} in "
            f"{clean(old.url)}, {count(counts['added'])} in {clean(new.url)}"
        )
    print_lines(lines)
    _print_rows("new", found.new, top)
    _print_rows("added", found.added, top)


def compare_runs(old: Run, new: Run) -> Comparison:
    """Find what became of an older run's findings, and what is new.

    Raises:
        SgoifError: One of the runs has no probabilities, or they have too few examples in common.
    """
    for run in (old, new):
        need_probabilities(run)
    with joining() as tables:
        for name, run in (("old", old), ("new", new)):
            tables.register("stream", pa.RecordBatchReader.from_batches(_LABELS, _labels(run)))
            # an id that stands in training and hold-out is the training example's
            tables.execute(f"create table {name} as select id, min_by(given, place) as given from stream group by id")
            tables.unregister("stream")
            tables.register(f"flagged_{name}", _flagged(run))
        tables.execute(
            "create view pairs as select o.id, o.given as was, n.given as now from old o join new n on o.id = n.id"
        )
        in_both, relabelled = _row(
            tables, "select count(*), count(*) filter (was <> now and was <> '' and now <> '') from pairs"
        )
        sizes = [_row(tables, f"select count(*) from {name}")[0] for name in ("old", "new")]
        _need_common(old, new, sizes, in_both, relabelled)
        found = {kind: tables.sql(query).to_arrow_table() for kind, query in _QUERIES.items()}
        return Comparison(
            **found,
            in_both=in_both,
            only_in_old=sizes[0] - in_both,
            only_in_new=sizes[1] - in_both,
        )


_SAME = "select 1 from flagged_{other} f where f.id = flagged.id and f.given = flagged.given"
_QUERIES = {
    "resolved": f"""select flagged.*, case when now <> given then '{RELABELLED}' else '{CLEARED}' end as how
        from flagged_old flagged join pairs using (id) where not exists ({_SAME.format(other="new")})
        order by p desc, id""",
    "still": f"""select flagged.*, 'still flagged' as how from flagged_new flagged
        where exists ({_SAME.format(other="old")}) order by p desc, id""",
    "new": f"""select flagged.*, case when was <> given then '{RELABELLED}' else '{DOUBTED}' end as how
        from flagged_new flagged join pairs using (id) where not exists ({_SAME.format(other="old")})
        order by p desc, id""",
    "gone": "select * from flagged_old where id not in (select id from new) order by p desc, id",
    "added": "select * from flagged_new where id not in (select id from old) order by p desc, id",
}


def _need_common(old: Run, new: Run, sizes: list[int], in_both: int, relabelled: int) -> None:
    """Raise where two runs are not of the same data."""
    if in_both < _LEAST_COMMON * min(sizes):
        first = [read_one(run, "select id::varchar as id from examples limit 1") for run in (old, new)]
        raise SgoifError(
            f"{old.url!r} and {new.url!r} have {count(in_both)} of {count(min(sizes))} ids in common, too few to tell "
            f"what changed: theirs look like {shorten(first[0], 80)!r} and {shorten(first[1], 80)!r}. Compare two runs "
            "of the same data, with the same ids."
        )
    if relabelled > _MOST_RELABELLED * in_both:
        raise SgoifError(
            f"{old.url!r} and {new.url!r} have {count(in_both)} ids in common, but {percent(relabelled / in_both)} of "
            "them have another label: the ids stand for other examples, or the classes were renamed. Compare two runs "
            "of the same data, with the same ids and class names."
        )


def _labels(run: Run) -> Iterator[pa.RecordBatch]:
    """Id and label of all examples of a run, those that it held out among them."""
    for place, table in enumerate(("examples", "holdout")):
        for batch in run.files.batches(table, ["id", "given_label"]):
            given = pc.fill_null(batch["given_label"], -1)
            columns = [
                batch["id"].cast(pa.string()),
                _names(run, given),
                pa.repeat(pa.scalar(place, pa.int8()), len(batch)),
            ]
            yield from pa.table(columns, schema=_LABELS).to_batches()


def _flagged(run: Run) -> pa.Table:
    """Labels that are more likely wrong than right, with ids as text and classes by name."""
    held = columns_of(run.sql, "holdout")
    fields = _fields(columns_of(run.sql, "examples"))
    selected = f"select {fields} from examples where p_mislabeled >= $least and given_label >= 0"
    if "p_mislabeled" in held:
        selected += (
            f" union all select {_fields(held)} from holdout where p_mislabeled >= $least and given_label >= 0 "
            "and not coalesce(trusted, false) and id::varchar not in (select id::varchar from examples)"
        )
    found = run.sql(selected, least=FLAGGED)
    return pa.table(
        {
            "id": found["id"],
            "given": _names(run, found["given_label"]),
            "suggested": _names(run, found["suggested_label"]),
            "p": found["p"],
            "p_low": found[_ENDS[0]],
            "p_high": found[_ENDS[1]],
        }
    )


def _fields(present: Mapping[str, str]) -> str:
    suggested = "coalesce(suggested_label, -1)" if "suggested_label" in present else "-1"
    ends = [f"{name if name in present else 'null'}::double as {name}" for name in _ENDS]
    return (
        f"id::varchar as id, given_label::bigint as given_label, {suggested}::bigint as suggested_label, "
        f"p_mislabeled::double as p, {', '.join(ends)}"
    )


def _names(run: Run, labels: pa.ChunkedArray) -> pa.Array:
    known = pc.unique(labels)
    names = pa.array([name_of(run, label) for label in known.to_pylist()], pa.string())
    return names.take(pc.index_in(_array(labels), value_set=known))


def _array(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays([pa.array([], column.type), *column.chunks])


def _row(tables: Any, query: str) -> tuple[int, ...]:
    return tuple(int(value) for value in tables.execute(query).fetchall()[0])


def _number(table: pa.Table, how: str) -> int:
    return int(pc.sum(pc.equal(table["how"], how)).as_py() or 0)


def _print_rows(title: str, table: pa.Table, top: int | None) -> None:
    if not len(table):
        return
    print_lines([""])
    rows = table.slice(0, top).to_pylist()
    has_how = "how" in table.column_names
    print_table(
        [title, "given -> suggested", "p (range)", *(["how"] if has_how else [])],
        [[*_shown(row), *([row["how"]] if has_how else [])] for row in rows],
        shrink=[title, "given -> suggested"],
    )
    if top is not None and len(table) > top:
        print_lines([f"and {count(len(table) - top)} more; --top 0 shows all."])


def _shown(row: dict[str, Any]) -> list[str]:
    suggested = f" -> {shorten(row['suggested'])}" if row["suggested"] and row["suggested"] != row["given"] else ""
    return [
        shorten(row["id"]),
        f"{shorten(row['given'])}{suggested}",
        interval(row["p"], row["p_low"], row["p_high"]),
    ]
