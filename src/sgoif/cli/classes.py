"""``sgoif classes``: where the errors are, class by class, and what kind of trouble each class has."""

from __future__ import annotations

from typing import Any

from sgoif.cli.output import clean, count, emit_json, percent, percents, print_lines, print_table, shorten
from sgoif.cli.run import Run, need_probabilities, open_run

__all__ = ["class_rows", "show_classes"]


def show_classes(url: str, *, as_json: bool = False) -> None:
    """Print what is wrong with each class."""
    run = open_run(url)
    need_probabilities(run)
    rows = class_rows(run)
    if as_json:
        emit_json({"command": "classes", "format": 1, "run": run.url, "classes": rows})
        return
    print_lines([*run.summary().lines()[:2], ""])
    print_table(
        ["class", "error rate (range)", "errors", "examples", "usually should be", "verdict"],
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
        shrink=["class", "usually should be"],
        wrap=["verdict"],
    )


def class_rows(run: Run) -> list[dict[str, Any]]:
    """One row per class, the worst first."""
    rows: list[dict[str, Any]] = run.class_issues().to_pylist()
    return rows
