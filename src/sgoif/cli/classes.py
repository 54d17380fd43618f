"""``sgoif classes``: where the errors are, class by class, and what kind of trouble each class has."""

from __future__ import annotations

from typing import Any

from sgoif.cli.opened import OpenRun, open_run
from sgoif.cli.output import clean, count, emit_json, percent, percents, plain, print_lines, print_table, shorten
from sgoif.cli.summary import summarise
from sgoif.findings import class_issues

__all__ = ["class_rows", "show_classes"]


def show_classes(url: str, *, as_json: bool = False) -> None:
    """Print what is wrong with each class."""
    run = open_run(url)
    run.need_probabilities()
    rows = class_rows(run)
    if as_json:
        emit_json({"command": "classes", "format": 1, "run": run.url, "classes": rows})
        return
    print_lines([*summarise(run).lines()[:2], ""])
    print_table(
        ["class", "error rate (range)", "errors", "examples", "in truth", "verdict"],
        [
            [
                shorten(row["name"]),
                f"{percent(row['error_rate'])} ({percents(row['error_rate_low'], row['error_rate_high'])})",
                count(row["expected_errors"]),
                count(row["num_examples"]),
                clean(row["confused_with"]),
                row["verdict"],
            ]
            for row in rows
        ],
        right=["error rate (range)", "errors", "examples"],
        shrink=["class", "in truth"],
        wrap=["verdict"],
    )


def class_rows(run: OpenRun) -> list[dict[str, Any]]:
    """One row per class, the worst first."""
    found = class_issues(run.rates_columns(), class_names=run.class_names, held_out=run.held_out_per_class)
    columns = {name: plain(column) for name, column in found.items()}
    return [{name: column[i] for name, column in columns.items()} for i in range(len(columns["class"]))]
