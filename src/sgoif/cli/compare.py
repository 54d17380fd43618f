"""``sgoif compare``: what became of the labels that an older run doubted, and which ones are doubted anew.

A finding is a label, not an example: an example that was relabelled is resolved, and if its new label is doubted too,
that is a new finding. Classes are matched by name, since their numbers may change when classes are added. Only examples
that both runs have can be resolved or new, wherever they stand: what one run trained on, the other may have held out.

Flagged rows are held; of the rest, one row group at a time is looked at, and DuckDB spills what it joins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sgoif.cli.options import Json, how_many
from sgoif.cli.output import clean, count, emit_json, interval, percent, print_lines, print_table, shorten
from sgoif.cli.run import need_probabilities, open_run, open_tables, read_one
from sgoif.errors import SgoifError

if TYPE_CHECKING:
    import pyarrow as pa

    from sgoif.run import Run

RELABELLED, CLEARED, DOUBTED = "relabelled", "no longer doubted", "newly doubted"
_ENDS = ("p_mislabeled_low", "p_mislabeled_high")
_KINDS = ("resolved", "still", "new", "gone", "added")
_LEAST_COMMON = 0.1  # of the smaller run: with fewer common ids the two are runs of different data
_MOST_RELABELLED = 0.5  # of the common ids: with more other labels the ids stand for other examples
_NAME = "case when {label} < 0 then '' else coalesce(($names::varchar[])[{label} + 1], {label}::varchar) end"


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
        numbers = {name: getattr(self, name) for name in ("in_both", "only_in_old", "only_in_new")}
        return {
            **numbers,
            **{"still_flagged" if name == "still" else name: len(getattr(self, name)) for name in _KINDS},
            "resolved_by": {how: _count(self.resolved, how) for how in (CLEARED, RELABELLED)},
            "new_by": {how: _count(self.new, how) for how in (DOUBTED, RELABELLED)},
        }


def compare(
    old: Annotated[str, typer.Argument(metavar="OLD", help="Read the earlier run here.", show_default=False)],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Read the later run here.", show_default=False)],
    top: Annotated[int, how_many("new findings")] = 50,
    as_json: Json = False,
) -> None:
    """Show which findings of an older run are resolved, which remain, and which are new."""
    found = compare_runs(open_run(old), open_run(new))
    counts = found.counts()
    if as_json:
        document = {name: getattr(found, name).to_pylist() for name in _KINDS}
        return emit_json("compare", runs={"old": old, "new": new}, **counts, findings=document)
    by, anew = counts["resolved_by"], counts["new_by"]
    lines = [
        f"{count(found.in_both, 'example')} in both runs, {count(found.only_in_old)} only in {clean(old)}, "
        f"{count(found.only_in_new)} only in {clean(new)}",
        f"{count(counts['resolved'])} resolved ({count(by[CLEARED])} no longer doubted, {count(by[RELABELLED])} "
        "relabelled)",
        f"{count(counts['still_flagged'])} still flagged",
        f"{count(counts['new'])} new ({count(anew[DOUBTED])} newly doubted, {count(anew[RELABELLED])} relabelled)",
    ]
    if counts["gone"] or counts["added"]:
        lines.append(
            f"Flagged in one run only, since the other does not have the example: {count(counts['gone'])} in "
            f"{clean(old)}, {count(counts['added'])} in {clean(new)}"
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
    with open_tables() as tables:
        _load(tables, "old", old)
        _load(tables, "new", new)
        tables.execute(
            "create view pairs as select o.id, o.given as was, n.given as now from old o join new n on o.id = n.id"
        )
        in_both, relabelled, num_old, num_new = tables.sql(
            "select count(*), count(*) filter (was <> now and was <> '' and now <> ''), (select count(*) from old), "
            "(select count(*) from new) from pairs"
        ).fetchall()[0]
        _need_common(old, new, min(num_old, num_new), in_both, relabelled)
        found = {kind: tables.sql(query).to_arrow_table() for kind, query in _QUERIES.items()}
        return Comparison(**found, in_both=in_both, only_in_old=num_old - in_both, only_in_new=num_new - in_both)


def _load(tables: Any, name: str, run: Run) -> None:
    """Make a table of all examples of a run, those that it held out among them, and one of its flagged labels."""
    names = {"names": list(run.class_names)}
    tables.execute("create or replace table labels (id varchar, label bigint, place tinyint)")
    for place, table in enumerate(("examples", "holdout")):
        for batch in run.files.batches(table, ["id", "given_label"]):
            tables.register("piece", batch)
            tables.execute(f"insert into labels select id::varchar, coalesce(given_label, -1), {place} from piece")
    tables.execute(f"create table {name} (id varchar, given varchar)")
    # an id that stands in training and hold-out is the training example's
    given = _NAME.format(label="min_by(label, place)")
    tables.execute(f"insert into {name} select id, {given} from labels group by id", names)
    columns = "id varchar, given varchar, suggested varchar, p double, p_low double, p_high double"
    tables.execute(f"create table flagged_{name} ({columns})")
    tables.register("piece", _read_flagged(run))
    given, suggested = (_NAME.format(label=label) for label in ("given_label", "suggested_label"))
    ends = ", ".join(_ENDS)
    tables.execute(f"insert into flagged_{name} select id, {given}, {suggested}, p, {ends} from piece", names)


def _read_flagged(run: Run) -> pa.Table:
    """Labels that are more likely wrong than right."""
    from sgoif.findings.suspects import FLAGGED, columns_of

    held = columns_of(run.sql, "holdout")
    fields = _fields(columns_of(run.sql, "examples"))
    selected = f"select {fields} from examples where p_mislabeled >= $least and given_label >= 0"
    if "p_mislabeled" in held:
        selected += (
            f" union all select {_fields(held)} from holdout where p_mislabeled >= $least and given_label >= 0 "
            "and not coalesce(trusted, false) and id::varchar not in (select id::varchar from examples)"
        )
    return run.sql(selected, least=FLAGGED)


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


def _need_common(old: Run, new: Run, smaller: int, in_both: int, relabelled: int) -> None:
    """Raise where two runs are not of the same data."""
    if in_both < _LEAST_COMMON * smaller:
        first = [read_one(run, "select id::varchar as id from examples limit 1") for run in (old, new)]
        raise SgoifError(
            f"{old.url!r} and {new.url!r} have {count(in_both)} of {count(smaller)} ids in common, too few to tell "
            f"what changed: theirs look like {shorten(first[0], 80)!r} and {shorten(first[1], 80)!r}. Compare two runs "
            "of the same data, with the same ids."
        )
    if relabelled > _MOST_RELABELLED * in_both:
        raise SgoifError(
            f"{old.url!r} and {new.url!r} have {count(in_both)} ids in common, but {percent(relabelled / in_both)} of "
            "them have another label: the ids stand for other examples, or the classes were renamed. Compare two runs "
            "of the same data, with the same ids and class names."
        )


def _fields(present: Mapping[str, str]) -> str:
    suggested = "coalesce(suggested_label, -1)" if "suggested_label" in present else "-1"
    ends = [f"{name if name in present else 'null'}::double as {name}" for name in _ENDS]
    return (
        f"id::varchar as id, given_label::bigint as given_label, {suggested}::bigint as suggested_label, "
        f"p_mislabeled::double as p, {', '.join(ends)}"
    )


def _count(table: pa.Table, how: str) -> int:
    return int(table["how"].to_pylist().count(how))


def _print_rows(title: str, table: pa.Table, top: int) -> None:
    if not len(table):
        return
    columns = {
        title: lambda row: shorten(row["id"]),
        "given -> suggested": _name_labels,
        "p (range)": lambda row: interval(row["p"], row["p_low"], row["p_high"]),
        **({"how": lambda row: row["how"]} if "how" in table.column_names else {}),
    }
    print_lines([""])
    print_table(table.slice(0, top or None).to_pylist(), columns, shrink=[title, "given -> suggested"])
    if 0 < top < len(table):
        print_lines([f"and {count(len(table) - top)} more; --top 0 shows all."])


def _name_labels(row: Mapping[str, Any]) -> str:
    is_other = row["suggested"] and row["suggested"] != row["given"]
    return f"{shorten(row['given'])} -> {shorten(row['suggested'])}" if is_other else shorten(row["given"])
