"""``sgoif issues``: which labels are wrong, most suspicious first; or how many in each group of the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sgoif.cli.joining import join
from sgoif.cli.output import (
    clean,
    console,
    count,
    emit_json,
    interval,
    percent,
    percents,
    print_lines,
    print_table,
    shorten,
)
from sgoif.cli.run import Run, name_of, need_examples, need_probabilities, open_run, read_one
from sgoif.cli.tags import has_tags, show_tag_issues
from sgoif.errors import SgoifError
from sgoif.files.tables import read_columns, write_csv, write_parquet
from sgoif.findings import group_issues

__all__ = ["show_groups", "show_issues", "show_rows"]

_WIDE = 120  # columns from which on a reason has a column of its own
_UNKNOWN_GROUP = "(not in the table)"


def show_issues(
    url: str,
    *,
    top: int | None = 50,
    csv: str | None = None,
    parquet: str | None = None,
    as_json: bool = False,
    of_class: str | None = None,
    min_p: float | None = None,
) -> None:
    """Print or write the most suspicious labels of a run."""
    run = open_run(url)
    need_examples(run)
    if has_tags(run):
        show_tag_issues(run, top=top, csv=csv, parquet=parquet, as_json=as_json, of_class=of_class, min_p=min_p)
        return
    if min_p is not None:
        need_probabilities(run)
    table = run.label_issues(top=top, given=of_class, min_p=min_p)
    if csv is not None or parquet is not None:
        write_csv(table, csv) if csv is not None else write_parquet(table, str(parquet))
        print_lines([f"{count(len(table), 'label')} written to {csv or parquet}."])
        return
    if as_json:
        emit_json({"command": "issues", "format": 1, "summary": run.summary().document(), "issues": table.to_pylist()})
        return
    print_lines(run.summary().lines())
    print_lines([""])
    if not len(table):
        print_lines(["No label matches."])
        return
    show_rows(run, table)


def show_groups(url: str, *, by: str, table: str, as_json: bool = False) -> None:
    """Print error rates by a column of the user's own table, joined by id."""
    run = open_run(url)
    need_probabilities(run)
    own = read_columns(table, ["id", by])
    joined, num_unknown = _joined(run, own, by, table)
    found = group_issues(joined, joined["group"])
    rows = [{"group": _native(found["group"][i])} | _rate_row(found, i) for i in range(len(found["group"]))]
    if as_json:
        emit_json(
            {"command": "issues", "format": 1, "by": by, "groups": rows, "num_examples_not_in_table": num_unknown}
        )
        return
    summary = run.summary()
    lines = summary.lines()[: 2 + len(summary.warnings)]
    if num_unknown:
        lines.append(f"{count(num_unknown)} of {count(run.num_examples, 'example')} are not in {clean(table)}.")
    print_lines([*lines, ""])
    print_table(
        [clean(by), "error rate (range)", "errors", "examples", "verdict"],
        [
            [
                shorten(row["group"]),
                f"{percent(row['error_rate'])} ({percents(row['error_rate_low'], row['error_rate_high'])})",
                count(row["expected_errors"]),
                count(row["num_examples"]),
                row["verdict"],
            ]
            for row in rows
        ],
        right=["error rate (range)", "errors", "examples"],
        shrink=[clean(by)],
        wrap=["verdict"],
    )


def show_rows(run: Run, table: pa.Table) -> None:
    """Print rows of ``label_issues``: a line each where there is room, else the reason in a second line."""
    rows = table.to_pylist()
    score = "p (range)" if run.is_calibrated else "label score"
    lines = [
        [
            str(rank),
            shorten(row["id"]) + (" (hold-out)" if row["source"] == "holdout" else ""),
            _labels(run, row),
            interval(row.get("p_mislabeled"), row.get("p_mislabeled_low"), row.get("p_mislabeled_high"))
            if run.is_calibrated
            else _number(row["label_score"]),
            clean(row["why"]),
        ]
        for rank, row in enumerate(rows, 1)
    ]
    headers = ["#", "id", "given -> suggested", score, "why"]
    screen = console()
    if screen.is_terminal and screen.width < _WIDE:
        _print_narrow(headers, lines, screen.width)
    else:
        print_table(headers, lines, right=["#"], wrap=["why"], shrink=["id", "given -> suggested"])


def _print_narrow(headers: Sequence[str], lines: Sequence[Sequence[str]], width: int) -> None:
    """Two lines per label: what and how sure, and below it why."""
    from rich.cells import cell_len, set_cell_size
    from rich.padding import Padding
    from rich.text import Text

    screen = console()
    rank = len(lines[-1][0])
    score = max(cell_len(headers[3]), *(cell_len(line[3]) for line in lines))
    labels = min(max(cell_len(headers[2]), *(cell_len(line[2]) for line in lines)), max(width // 3, 18))
    longest = max(cell_len(headers[1]), *(cell_len(line[1]) for line in lines))
    room = min(max(width - rank - score - labels - 6, 8), longest)
    header = (
        f"{headers[0]:>{rank}}  {set_cell_size(headers[1], room)}  {set_cell_size(headers[2], labels)}  {headers[3]}"
    )
    screen.print(Text(header, style="bold"), overflow="crop", no_wrap=True)
    for line in lines:
        ident, named = shorten(line[1], room), shorten(line[2], labels)
        text = f"{line[0]:>{rank}}  {set_cell_size(ident, room)}  {set_cell_size(named, labels)}  {line[3]}"
        screen.print(Text(text), overflow="crop", no_wrap=True)
        screen.print(Padding(Text(line[4], style="dim"), (0, 0, 0, rank + 2)))


def _labels(run: Run, row: dict[str, Any]) -> str:
    suggested = name_of(run, row["suggested_label"])
    given = clean(name_of(run, row["given_label"]))
    return f"{given} -> {clean(suggested)}" if suggested and suggested != given else given


def _number(value: float | None) -> str:
    return "?" if value is None or value != value else f"{value:.3g}"


def _joined(run: Run, own: pa.Table, by: str, path: str) -> tuple[dict[str, Any], int]:
    """The run's examples with the user's column beside them, and how many have no row there."""
    examples = run.sql(
        "select id, p_mislabeled, p_mislabeled_low, p_mislabeled_high from examples where p_mislabeled is not null"
    )
    tables = {"run": examples, "own": own.rename_columns(["id", "grp"])}
    twice = join("select id from own group by id having count(*) > 1 order by id limit 1", tables)["id"].to_pylist()
    if twice:
        raise SgoifError(f"{path!r} has several rows with id {shorten(twice[0], 80)!r}; one row per id is needed.")
    found = join(
        "select run.id, p_mislabeled, p_mislabeled_low, p_mislabeled_high, own.grp, own.id is null as lost "
        "from run left join own on run.id::varchar = own.id",
        tables,
    )
    lost = found["lost"].to_numpy()
    if lost.all():
        first = read_one(run, "select id from examples limit 1")
        raise SgoifError(
            f"no id of {path!r} is one of this run's; its ids look like {shorten(first, 80)!r}. Is the column "
            "`id` the right one?"
        )
    values = found["grp"].to_pylist()
    groups = [_UNKNOWN_GROUP if gone else "(empty)" if value is None else value for gone, value in zip(lost, values)]
    columns: dict[str, Any] = {
        name: found[name].to_numpy(zero_copy_only=False)
        for name in ("id", "p_mislabeled", "p_mislabeled_low", "p_mislabeled_high")
    }
    return columns | {"group": np.array(groups, dtype=object).astype(str)}, int(lost.sum())


def _rate_row(found: dict[str, Any], i: int) -> dict[str, Any]:
    names = ("error_rate", "error_rate_low", "error_rate_high", "expected_errors", "num_examples", "verdict")
    return {name: _native(found[name][i]) for name in names}


def _native(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value
