"""``sgoif compare``: what became of the labels that an older run doubted, and which ones are doubted anew.

A finding is a label, not an example: an example that was relabelled is resolved, and if its new label is doubted too,
that is a new finding. Classes are matched by name, since their numbers may change when classes are added.

Only flagged rows are held; of the rest, one row group at a time is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sgoif.cli.joining import join
from sgoif.cli.opened import FLAGGED, OpenRun, open_run
from sgoif.cli.output import count, emit_json, interval, print_lines, print_table, shorten

__all__ = ["Comparison", "compare_runs", "show_comparison"]

_ENDS = ("p_mislabeled_low", "p_mislabeled_high")
GONE, RELABELLED, CLEARED = "gone", "relabelled", "no longer doubted"
ADDED, DOUBTED = "new example", "newly doubted"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Findings of two runs; ``resolved``, ``still`` and ``new`` have a column ``how``."""

    resolved: pa.Table
    still: pa.Table
    new: pa.Table

    def counts(self) -> dict[str, Any]:
        """How many there are of each kind, and why."""
        return {
            "resolved": len(self.resolved),
            "still_flagged": len(self.still),
            "new": len(self.new),
            "resolved_by": {how: _number(self.resolved, how) for how in (CLEARED, RELABELLED, GONE)},
            "new_by": {how: _number(self.new, how) for how in (DOUBTED, RELABELLED, ADDED)},
        }


def show_comparison(old_url: str, new_url: str, *, top: int | None = 50, as_json: bool = False) -> None:
    """Print what changed between two runs."""
    old, new = open_run(old_url), open_run(new_url)
    found = compare_runs(old, new)
    counts = found.counts()
    if as_json:
        document = {name: getattr(found, name).to_pylist() for name in ("resolved", "still", "new")}
        emit_json({"command": "compare", "format": 1, "old": old.url, "new": new.url, **counts, "findings": document})
        return
    by, anew = counts["resolved_by"], counts["new_by"]
    print_lines(
        [
            f"{count(counts['resolved'])} resolved ({count(by[CLEARED])} no longer doubted, {count(by[RELABELLED])} "
            f"relabelled, {count(by[GONE])} gone)",
            f"{count(counts['still_flagged'])} still flagged",
            f"{count(counts['new'])} new ({count(anew[DOUBTED])} newly doubted, {count(anew[RELABELLED])} relabelled, "
            f"{count(anew[ADDED])} of new examples)",
        ]
    )
    if counts["new"]:
        print_lines([""])
        shown = found.new.slice(0, top)
        print_table(
            ["new", "given -> suggested", "p (90% interval)", "how"],
            [_shown(row) for row in shown.to_pylist()],
            shrink=["new", "given -> suggested"],
        )
        if top is not None and counts["new"] > top:
            print_lines([f"and {count(counts['new'] - top)} more; --top 0 shows all."])


def compare_runs(old: OpenRun, new: OpenRun) -> Comparison:
    """Find what became of an older run's findings, and what is new.

    Raises:
        SgoifError: One of the runs has no probabilities.
    """
    for run in (old, new):
        run.need_probabilities()
    was, now = _flagged(old), _flagged(new)
    # what the new run has of the examples that were flagged, and the old one of those that are
    tables = {"was": was, "now": now, "seen": _lookup(new, was["id"]), "known": _lookup(old, now["id"])}
    resolved = join(
        f"""select was.*, case when seen.id is null then '{GONE}' when seen.given <> was.given then '{RELABELLED}'
            else '{CLEARED}' end as how from was left join seen on was.id = seen.id
            where not exists (select 1 from now where now.id = was.id and now.given = was.given)
            order by p desc, was.id""",
        tables,
    )
    still = join(
        "select now.*, 'still flagged' as how from now join was on now.id = was.id and now.given = was.given "
        "order by now.p desc, now.id",
        tables,
    )
    fresh = join(
        f"""select now.*, case when known.id is null then '{ADDED}' when known.given <> now.given
            then '{RELABELLED}' else '{DOUBTED}' end as how from now left join known on now.id = known.id
            where not exists (select 1 from was where was.id = now.id and was.given = now.given)
            order by p desc, now.id""",
        tables,
    )
    return Comparison(resolved, still, fresh)


def _flagged(run: OpenRun) -> pa.Table:
    """Labels that are more likely wrong than right, with ids as text and classes by name."""
    ends = [name if name in run.columns else f"null::double as {name}" for name in _ENDS]
    found = run.files.sql(
        f"select id::varchar as id, given_label, coalesce(suggested_label, -1) as suggested_label, p_mislabeled as p, "
        f"{', '.join(ends)} from examples where p_mislabeled >= $least and given_label >= 0",
        least=FLAGGED,
    )
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


def _lookup(run: OpenRun, ids: pa.ChunkedArray) -> pa.Table:
    """Id and label of some examples of a run, found by going through it once."""
    wanted = _array(ids)
    kept = [pa.table({"id": pa.array([], pa.string()), "given": pa.array([], pa.string())})]
    for batch in run.files.batches("examples", ["id", "given_label"]):
        named = batch.set_column(0, "id", batch["id"].cast(pa.string()))
        found = named.filter(pc.is_in(named["id"], value_set=wanted))
        if len(found):
            kept.append(pa.table({"id": found["id"], "given": _names(run, found["given_label"])}))
    return pa.concat_tables(kept)


def _names(run: OpenRun, labels: pa.ChunkedArray) -> pa.Array:
    known = pc.unique(labels)
    names = pa.array([run.name_of(label) for label in known.to_pylist()], pa.string())
    return names.take(pc.index_in(_array(labels), value_set=known))


def _array(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays([pa.array([], column.type), *column.chunks])


def _number(table: pa.Table, how: str) -> int:
    return int(pc.sum(pc.equal(table["how"], how)).as_py() or 0)


def _shown(row: dict[str, Any]) -> list[str]:
    suggested = f" -> {shorten(row['suggested'])}" if row["suggested"] and row["suggested"] != row["given"] else ""
    return [
        shorten(row["id"]),
        f"{shorten(row['given'])}{suggested}",
        interval(row["p"], row["p_low"], row["p_high"]),
        row["how"],
    ]
