"""``sgoif issues``: which labels are wrong, most suspicious first; or how many in each group of the user's own.

Of a multi-label run: which tags are too many, and which are missing. Of a regression: which values are wrong. Of a
language model: which training sequences are suspicious.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sgoif.cli.options import Json, MaybeFloat, MaybeText, RankBy, RunPath, Table, how_many, need_both, need_one_of
from sgoif.cli.output import RATES, clean, console, count, cut, emit_json, interval, print_lines, print_table, shorten
from sgoif.cli.run import name_of, need_probabilities, open_run, open_tables, read_one
from sgoif.errors import SgoifError
from sgoif.files.tables import read_columns, write_csv, write_parquet

if TYPE_CHECKING:
    import pyarrow as pa

    from sgoif.run import Run

log = logging.getLogger(__name__)

_WIDE = 120  # columns from which on a reason has a column of its own
_EXAMPLE = "example"  # the column of shortened texts
_LONGEST = 200  # characters of them
_MOST_COMPARED = 100  # rows whose nearest examples are looked up: 2 s for 50 rows of a run of 300,000
_UNKNOWN_GROUP = "(not in the table)"


def issues(
    run: RunPath,
    top: Annotated[int, how_many("labels, tags, values or sequences")] = 50,
    csv: Annotated[MaybeText, typer.Option(metavar="FILE", help="Write the labels as CSV.")] = None,
    parquet: Annotated[MaybeText, typer.Option(metavar="FILE", help="Write the labels as Parquet.")] = None,
    as_json: Json = False,
    of_class: Annotated[
        MaybeText, typer.Option("--class", metavar="NAME", help="Show only labels of this class.")
    ] = None,
    min_p: Annotated[
        MaybeFloat,
        typer.Option(metavar="P", min=0, max=1, help="Show only labels that are at least this probably wrong."),
    ] = None,
    by: Annotated[MaybeText, typer.Option(metavar="COLUMN", help="Show error rates by this column of --table.")] = None,
    table: Table = None,
    rank_by: RankBy = None,
    show: Annotated[
        MaybeText,
        typer.Option(metavar="run|FILE", help="Show texts or rows too; `run` means where the scan read them."),
    ] = None,
) -> None:
    """Show the labels that are most probably wrong."""
    need_one_of(csv=csv, parquet=parquet, json=as_json)
    need_both(by, table, "--by COLUMN and --table FILE")
    if by is not None and table is not None:
        if csv is not None or parquet is not None or of_class is not None or min_p is not None:
            raise SgoifError("--by goes with --table and --json only.")
        if show is not None:
            raise SgoifError("--by shows groups, and --show examples; pass one of them.")
        return _show_groups(open_run(run), by, table, as_json=as_json)
    opened = open_run(run, needs_examples=True, takes_values=True, takes_sequences=True)
    noun = _noun_of(opened)
    if noun != "sequence" and rank_by is not None:
        raise SgoifError(f"--rank-by goes with sequences of a language model; this run judged {noun}s.")
    if noun == "sequence" and min_p is not None:
        raise SgoifError("--min-p goes with labels; sequences share the probability of their part of the ranking.")
    if noun != "tag" and min_p is not None:
        need_probabilities(opened)
    if noun in ("value", "sequence") and of_class is not None:
        raise SgoifError(f"--class goes with labels; this run judged {noun}s.")
    if noun == "sequence":
        found = opened.sequence_issues(by=rank_by or "suspicion", top=top)
    elif noun == "value":
        found = opened.value_issues(top=top, min_p=min_p)
    elif noun == "tag":
        tag = None if of_class is None else opened.find_class(of_class)
        found = opened.tag_issues(top=top, tag=tag, min_p=min_p)
    else:
        is_short = 0 < top <= _MOST_COMPARED
        found = opened.label_issues(top=top, given=of_class, min_p=min_p, neighbours=is_short)
    if show is not None:
        found = _with_examples(opened, found, show)
    if csv is not None or parquet is not None:
        write_csv(found, csv) if csv is not None else write_parquet(found, str(parquet))
        return print_lines([f"{count(len(found), noun)} written to {csv or parquet}."])
    summary = opened.summary()
    if as_json:
        return emit_json("issues", summary=summary.document(), issues=found.to_pylist())
    print_lines([*summary.lines(), ""])
    if not len(found):
        print_lines([f"No {noun} matches."])
    elif noun == "tag":
        _show_tags(found.to_pylist(), is_calibrated=summary.is_calibrated)
    elif noun == "sequence":
        _show_sequences(found.to_pylist())
    elif noun == "value":
        show_values(found.to_pylist(), is_calibrated=summary.is_calibrated)
    else:
        show_labels(opened, found)


def _noun_of(run: Run) -> str:
    """What a run judged, for messages."""
    if run.has_sequences:
        return "sequence"
    return "value" if run.has_values else "tag" if has_tags(run) else "label"


def has_tags(run: Run) -> bool:
    """Whether a run is about tags."""
    return run.info.get("task") == "multilabel"


def _with_examples(run: Run, table: pa.Table, show: str) -> pa.Table:
    """Add a column with the text or row of each example, shortened; empty where it is a picture or missing.

    Raises:
        SgoifError: Not one example is a text or a row.
    """
    import pyarrow as pa

    from sgoif.cli.report import open_images
    from sgoif.sources.written import as_line, is_written

    place = open_images(run, show)
    ids = table["id"].to_pylist()
    values = [] if place is None else list(place.read(ids))
    if place is not None and values and not any(is_written(value) for value in values):
        why = getattr(place, "last_error", None) or "pictures are shown by `sgoif report`."
        raise SgoifError(f"{place.about} has no text or row of these examples: {why}")
    lines = [shorten(as_line(value), _LONGEST) if is_written(value) else None for value in values]
    if place is not None and (lost := lines.count(None)):
        log.warning("%s of %s have no text or row in %s.", count(lost), count(len(lines), "example"), place.about)
    return table.add_column(table.column_names.index("id") + 1, _EXAMPLE, pa.array(lines, pa.string()))


def show_labels(run: Run, table: pa.Table, *, is_brief: bool = False) -> None:
    """Print rows of ``label_issues``: a line each where there is room, else the reason in a second line.

    Where it is to be brief, a row is one line on any terminal, with what fits of the reason.
    """
    ends = ("p_mislabeled", "p_mislabeled_low", "p_mislabeled_high")
    columns: dict[str, Callable[[Any], str]] = {
        "#": lambda row: str(row["rank"]),
        "id": lambda row: shorten(row["id"]) + (" (hold-out)" if row["source"] == "holdout" else ""),
        "given -> suggested": lambda row: _name_labels(run, row),
    }
    if run.is_calibrated:
        columns["p (range)"] = lambda row: interval(*(row.get(name) for name in ends))
    else:
        columns["label score"] = lambda row: _number(row["label_score"])
    columns["why"] = lambda row: clean(row["why"])
    if _EXAMPLE in table.column_names:  # what an example says, in place of what the model thinks
        columns.pop("why")
        columns[_EXAMPLE] = lambda row: clean(row[_EXAMPLE] or "")
    rows = [{**row, "rank": rank} for rank, row in enumerate(table.to_pylist(), 1)]
    screen = console()
    if is_brief:
        _shorten_why(columns)
        print_table(rows, columns, right=["#"], shrink=["id", "given -> suggested"])
    elif screen.is_terminal and screen.width < _WIDE:
        _print_narrow(list(columns), [[show(row) for show in columns.values()] for row in rows], screen.width)
    else:
        print_table(rows, columns, right=["#"], wrap=[list(columns)[-1]], shrink=["id", "given -> suggested"])


def _show_tags(rows: Sequence[dict[str, Any]], *, is_calibrated: bool) -> None:
    columns: dict[str, Callable[[Any], object]] = {
        "#": lambda row: row["rank"],
        "id": lambda row: shorten(row["id"]),
        "tag": lambda row: row["tag_name"],
        "verdict": lambda row: row["verdict"],
    }
    if is_calibrated:
        columns["p (range)"] = lambda row: interval(row["p_wrong"], row["p_wrong_low"], row["p_wrong_high"])
    else:
        columns["loss"] = lambda row: f"{row['loss']:.5g}"
    columns["visits"] = lambda row: count(row["n_visits"])
    if rows and _EXAMPLE in rows[0]:
        columns[_EXAMPLE] = lambda row: clean(row[_EXAMPLE] or "")
    ranked = [{**row, "rank": rank} for rank, row in enumerate(rows, 1)]
    print_table(
        ranked, columns, right=["#", "visits"], wrap=[n for n in (_EXAMPLE,) if n in columns], shrink=["id", "tag"]
    )


def _show_sequences(rows: Sequence[dict[str, Any]]) -> None:
    """Print sequences of a language model in the order of the table."""
    columns: dict[str, Callable[[Any], object]] = {
        "#": lambda row: row["rank"],
        "id": lambda row: shorten(row["id"]),
        "p (range)": lambda row: interval(row["p_mislabeled"], row["p_mislabeled_low"], row["p_mislabeled_high"]),
        "suspicion": lambda row: _number(row["suspicion"]),
        "last loss": lambda row: _number(row["loss_last"]),
        "mean loss": lambda row: _number(row["loss"]),
        "tuned loss": lambda row: _number(row["loss_tuned"]),
        "conflict": lambda row: _number(row["conflict"]),
        "coverage": lambda row: _number(row["coverage"]),
        "harm": lambda row: _number(row["harm"]),
        "worst group": lambda row: "?" if row["worst_group"] is None else clean(row["worst_group"]),
        "harm to it": lambda row: _number(row["worst"]),
        "tokens": lambda row: count(row["num_tokens"]),
        "visits": lambda row: count(row["n_visits"]),
    }
    of_audits = {"conflict": "conflict", "coverage": "coverage", "tuned loss": "loss_tuned"}
    for title, name in of_audits.items():
        if all(row[name] is None for row in rows):
            del columns[title]
    if all(row["n_visits"] == 1 for row in rows):  # as in audits: there is one loss
        columns = {"loss" if title == "last loss" else title: show for title, show in columns.items()}
        del columns["mean loss"], columns["visits"]
    if all(row["p_mislabeled"] is None for row in rows):  # nobody has checked any
        del columns["p (range)"]
    if rows and _EXAMPLE in rows[0]:
        columns[_EXAMPLE] = lambda row: clean(row[_EXAMPLE] or "")
    ranked = [{**row, "rank": rank} for rank, row in enumerate(rows, 1)]
    numbers = ["#", "loss", "last loss", "mean loss", "tuned loss", "conflict", "coverage", "harm", "harm to it"]
    print_table(
        ranked,
        columns,
        right=[*numbers, "tokens", "visits"],
        wrap=[n for n in (_EXAMPLE,) if n in columns],
        shrink=["id"],
    )


def show_values(rows: Sequence[dict[str, Any]], *, is_calibrated: bool, is_brief: bool = False) -> None:
    """Print values of a regression, most suspicious first; a line each where it is to be brief."""
    ends = ("p_mislabeled", "p_mislabeled_low", "p_mislabeled_high")
    columns: dict[str, Callable[[Any], object]] = {
        "#": lambda row: row["rank"],
        "id": lambda row: shorten(row["id"]),
        "given": lambda row: _number(row["given_value"]),
        "predicted": lambda row: _number(row["predicted_value"]),
    }
    if is_calibrated:
        columns["p (range)"] = lambda row: interval(*(row[name] for name in ends))
    else:
        columns["label score"] = lambda row: _number(row["label_score"])
    columns["why"] = lambda row: clean(row["why"])
    ranked = [{**row, "rank": rank} for rank, row in enumerate(rows, 1)]
    if is_brief:
        _shorten_why(columns)
    print_table(
        ranked, columns, right=["#", "given", "predicted"], wrap=["why"] if "why" in columns else [], shrink=["id"]
    )


def _shorten_why(columns: dict[str, Callable[[Any], Any]]) -> None:
    """Cut the reasons to half a wide terminal, and leave them out on a narrow one; whole in a pipe."""
    screen = console()
    if not screen.is_terminal:
        return
    show = columns.pop("why")
    if screen.width >= _WIDE:
        columns["why"] = lambda row: cut(str(show(row)), screen.width // 2)


def _show_groups(run: Run, by: str, table: str, *, as_json: bool) -> None:
    """Print error rates by a column of the user's own table, joined by id."""
    import pyarrow as pa

    from sgoif.findings import group_issues

    need_probabilities(run)
    joined, num_unknown = _join(run, read_columns(table, ["id", by]), table)
    rows = pa.table(group_issues(joined, joined["group"])).to_pylist()
    if as_json:
        return emit_json("issues", by=by, groups=rows, num_examples_not_in_table=num_unknown)
    summary = run.summary()
    lines = summary.lines()[: 2 + len(summary.warnings)]
    if num_unknown:
        lines.append(f"{count(num_unknown)} of {count(run.num_examples, 'example')} are not in {clean(table)}.")
    print_lines([*lines, ""])
    columns = {by: lambda row: shorten(row["group"]), **RATES, "verdict": lambda row: row["verdict"]}
    print_table(rows, columns, right=list(RATES), shrink=[by], wrap=["verdict"])


def _print_narrow(headers: Sequence[str], lines: Sequence[Sequence[str]], width: int) -> None:
    """Two lines per label: what and how sure, and below it why."""
    from rich.cells import cell_len, set_cell_size
    from rich.padding import Padding
    from rich.text import Text

    screen = console()
    _, longest, labels, score = (max(cell_len(line[i]) for line in (headers, *lines)) for i in range(4))
    rank, labels = len(lines[-1][0]), min(labels, max(width // 3, 18))
    room = min(max(width - rank - score - labels - 6, 8), longest)
    for number, (place, ident, named, sure, why) in enumerate([headers, *lines]):
        cells = set_cell_size(shorten(ident, room), room), set_cell_size(shorten(named, labels), labels)
        text = Text(f"{place:>{rank}}  {'  '.join(cells)}  {sure}", style="" if number else "bold")
        screen.print(text, overflow="crop", no_wrap=True)
        if number:
            screen.print(Padding(Text(why, style="dim"), (0, 0, 0, rank + 2)))


def _name_labels(run: Run, row: Mapping[str, Any]) -> str:
    given, suggested = clean(name_of(run, row["given_label"])), name_of(run, row["suggested_label"])
    return f"{given} -> {clean(suggested)}" if suggested and suggested != given else given


def _number(value: float | None) -> str:
    return "?" if value is None or value != value else f"{value:.5g}"


def _join(run: Run, own: pa.Table, path: str) -> tuple[dict[str, Any], int]:
    """The run's examples with the user's column beside them, and how many have no row there."""
    names = ("id", "p_mislabeled", "p_mislabeled_low", "p_mislabeled_high")
    examples = run.sql(f"select {', '.join(names)} from examples where p_mislabeled is not null")
    with open_tables(run=examples, own=own.rename_columns(["id", "grp"])) as tables:
        twice = tables.sql("select min(id) from (select id from own group by id having count(*) > 1)").fetchall()[0][0]
        if twice is not None:
            raise SgoifError(f"{path!r} has several rows with id {shorten(twice, 80)!r}; one row per id is needed.")
        found = tables.sql(
            f"select run.*, own.id is null as lost, case when lost then '{_UNKNOWN_GROUP}' else "
            "coalesce(own.grp::varchar, '(empty)') end as grp from run left join own on run.id::varchar = own.id"
        ).to_arrow_table()
    lost = found["lost"].to_numpy()
    if lost.all():
        first = read_one(run, "select id from examples limit 1")
        raise SgoifError(
            f"no id of {path!r} is one of this run's; its ids look like {shorten(first, 80)!r}. Is the column "
            "`id` the right one?"
        )
    columns: dict[str, Any] = {name: found[name].to_numpy(zero_copy_only=False) for name in names}
    return columns | {"group": found["grp"].to_numpy(zero_copy_only=False).astype(str)}, int(lost.sum())
