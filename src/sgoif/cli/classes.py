"""``sgoif classes``: where the errors are, class by class, and what kind of trouble each class has."""

from __future__ import annotations

from sgoif.cli.options import Json, RunPath
from sgoif.cli.output import RATES, emit_json, print_lines, print_table, shorten
from sgoif.cli.run import need_probabilities, open_run


def classes(run: RunPath, as_json: Json = False) -> None:
    """Show error rates by class, and whether a class is mislabelled or overlaps with another."""
    opened = open_run(run)
    need_probabilities(opened)
    rows = opened.class_issues().to_pylist()
    if as_json:
        return emit_json("classes", run=run, classes=rows)
    print_lines([*opened.summary().lines()[:2], ""])
    print_table(
        rows,
        {
            "class": lambda row: shorten(row["name"]),
            **RATES,
            "usually should be": lambda row: row["confused_with"],
            "verdict": lambda row: row["verdict"],
        },
        right=list(RATES),
        shrink=["class", "usually should be"],
        wrap=["verdict"],
    )
