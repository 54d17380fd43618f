"""``sgoif issues`` and ``sgoif info`` of a multi-label run: which tags are too many, and which are missing."""

from __future__ import annotations

import pyarrow as pa

from sgoif import summary
from sgoif.cli.opened import OpenRun
from sgoif.cli.output import clean, count, emit_json, interval, print_lines, print_table, shorten
from sgoif.files.tables import write_csv, write_parquet
from sgoif.findings import tag_issues
from sgoif.summary import TagSummary

__all__ = ["TagSummary", "has_tags", "show_tag_issues", "summarise_tags"]


def has_tags(run: OpenRun) -> bool:
    """Whether a run is about tags."""
    return run.facts.get("task") == "multilabel"


def summarise_tags(run: OpenRun) -> TagSummary:
    """Collect the summary of a multi-label run."""
    return summary.summarise_tags(run.files.sql, run.about, run=run.url)


def show_tag_issues(
    run: OpenRun,
    *,
    top: int | None = 50,
    csv: str | None = None,
    parquet: str | None = None,
    as_json: bool = False,
    of_class: str | None = None,
    min_p: float | None = None,
) -> None:
    """Print or write the most suspicious tags of a run."""
    tag = None if of_class is None else run.label_of(of_class)
    table = pa.table(tag_issues(run.files.sql, run.class_names, top=top, tag=tag, min_p=min_p))
    if csv is not None or parquet is not None:
        write_csv(table, csv) if csv is not None else write_parquet(table, str(parquet))
        print_lines([f"{count(len(table), 'tag')} written to {csv or parquet}."])
        return
    found = summarise_tags(run)
    if as_json:
        emit_json({"command": "issues", "format": 1, "summary": found.document(), "issues": table.to_pylist()})
        return
    print_lines([*found.lines(), ""])
    if not len(table):
        print_lines(["No tag matches."])
        return
    score = "p (range)" if found.is_calibrated else "loss"
    print_table(
        ["#", "id", "tag", "verdict", score, "visits"],
        [
            [
                str(rank),
                shorten(row["id"]),
                clean(row["tag_name"]),
                row["verdict"],
                interval(row["p_wrong"], row["p_wrong_low"], row["p_wrong_high"])
                if found.is_calibrated
                else f"{row['loss']:.3g}",
                count(row["n_visits"]),
            ]
            for rank, row in enumerate(table.to_pylist(), 1)
        ],
        right=["#", "visits"],
        shrink=["id", "tag"],
    )
