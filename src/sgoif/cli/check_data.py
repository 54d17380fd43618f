"""``sgoif check-data``: what is wrong with the data as a whole, and what could not be checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from sgoif.cli.options import Json, MaybeText, RunPath, how_many, need_one_of
from sgoif.cli.output import count, emit_json, percent, percents, print_lines, print_table, shorten
from sgoif.cli.run import open_run
from sgoif.files.tables import write_csv


def check_data(
    run: RunPath,
    top: Annotated[int, how_many("examples of each issue")] = 3,
    csv: Annotated[MaybeText, typer.Option(metavar="FILE", help="Write one row per check as CSV.")] = None,
    as_json: Json = False,
) -> None:
    """Show what is wrong with the data: duplicates, outliers, leaks, drift, shortcuts, odd pictures."""
    need_one_of(csv=csv, json=as_json)
    issues = open_run(run).data_issues()
    rows = issues.to_pylist()
    if csv is not None:
        _write(issues, csv)
        return print_lines([f"{count(len(rows), 'check')} written to {csv}."])
    found = [row for row in rows if row["severity"] not in ("none", "unknown")]
    unknown = [row for row in rows if row["count"] is None]
    if as_json:
        numbers = {"num_checks": len(rows), "num_found": len(found), "num_not_checked": len(unknown)}
        return emit_json("check-data", **numbers, issues=[_cut(row, top) for row in rows])
    print_lines([_summarise(len(rows), len(found), len(unknown)), ""])
    print_table(
        rows,
        {
            "check": lambda row: row["kind"].replace("_", " "),
            "severity": lambda row: row["severity"],
            "found": lambda row: "?" if row["count"] is None else count(row["count"]),
            "share (range)": _describe_share,
            "p-value": lambda row: "" if row["p_value"] is None else f"{row['p_value']:.2g}",
        },
        right=["found"],
    )
    for row in found:
        named = ", ".join(shorten(ident) for ident in row["ids"][: top or None])
        print_lines(["", f"{row['kind'].replace('_', ' ')}: {row['title']} {row['what_to_do']}"])
        print_lines([f"  {named}"] if named else [])
    if unknown:
        print_lines(["", "Not checked:"])
        print_table(unknown, {"check": lambda row: row["kind"].replace("_", " "), "why": lambda row: row["why_not"]})


def _summarise(total: int, found: int, unknown: int) -> str:
    text = f"{count(found)} of {count(total, 'check')} found something"
    return f"{text}; {count(unknown)} could not be made." if unknown else f"{text}."


def _describe_share(row: Mapping[str, Any]) -> str:
    if row["share"] is None:
        return ""
    return f"{percent(row['share'])} ({percents(row['low'], row['high'])})" if row["low"] is not None else ""


def _cut(row: Mapping[str, Any], top: int) -> dict[str, Any]:
    return {**row, "ids": row["ids"][: top or None], "scores": row["scores"][: top or None]}


def _write(issues: Any, path: str) -> None:
    """Write the table with the ids of an issue in one cell, one per line."""
    import pyarrow as pa

    ids = pa.array(["\n".join(row) for row in issues["ids"].to_pylist()])
    flat = issues.drop_columns(["scores"])
    write_csv(flat.set_column(flat.column_names.index("ids"), "ids", ids), path)
