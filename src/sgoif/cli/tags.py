"""``sgoif issues`` and ``sgoif info`` of a multi-label run: which tags are too many, and which are missing."""

from __future__ import annotations

from sgoif.cli.output import clean, count, emit_json, interval, print_lines, print_table, shorten
from sgoif.cli.run import Run
from sgoif.files.tables import write_csv, write_parquet

__all__ = ["has_tags", "show_tag_issues"]


def has_tags(run: Run) -> bool:
    """Whether a run is about tags."""
    return run.info.get("task") == "multilabel"


def show_tag_issues(
    run: Run,
    *,
    top: int | None = 50,
    csv: str | None = None,
    parquet: str | None = None,
    as_json: bool = False,
    of_class: str | None = None,
    min_p: float | None = None,
) -> None:
    """Print or write the most suspicious tags of a run."""
    tag = None if of_class is None else run.find_class(of_class)
    table = run.tag_issues(top=top, tag=tag, min_p=min_p)
    if csv is not None or parquet is not None:
        write_csv(table, csv) if csv is not None else write_parquet(table, str(parquet))
        print_lines([f"{count(len(table), 'tag')} written to {csv or parquet}."])
        return
    found = run.summary()
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
