"""Commands that hold a run against limits, and turn it into better data. The work is in the files of their names."""

from __future__ import annotations

from typing import Annotated

import typer

from sgoif.cli.program import JUDGE, Images, Json, MaybeInt, MaybeText, MaybeTexts, RunPath, app
from sgoif.errors import SgoifError


@app.command(rich_help_panel=JUDGE)
def check(
    run: RunPath,
    max_error_rate: Annotated[MaybeText, typer.Option(metavar="SHARE", help="Of all labels: 2% or 0.02.")] = None,
    max_class_error_rate: Annotated[MaybeText, typer.Option(metavar="SHARE", help="Of any class's labels.")] = None,
    max_new: Annotated[MaybeInt, typer.Option(min=0, help="Newly flagged labels, with --against.")] = None,
    against: Annotated[MaybeText, typer.Option(metavar="OLD", help="The run to compare with.")] = None,
    summary: Annotated[MaybeText, typer.Option(metavar="FILE.md", help="Write a Markdown summary.")] = None,
    junit: Annotated[MaybeText, typer.Option(metavar="FILE.xml", help="Write JUnit XML.")] = None,
    as_json: Json = False,
) -> None:
    """Hold a run against limits: exit 0 fine, 1 exceeded, 2 cannot tell.

    The error rate is judged by labels that a person checked with `sgoif verify`, class rates by a verified hold-out.
    Without them, or where too few were checked to tell, the exit code is 2.
    """
    if max_error_rate is None and max_class_error_rate is None and max_new is None:
        raise SgoifError("give at least one of --max-error-rate, --max-class-error-rate and --max-new.")
    if (max_new is None) != (against is None):
        raise SgoifError("--max-new N and --against OLD go together.")
    from sgoif.cli.check import check as check_run
    from sgoif.cli.limits import Limits, parse_share

    limits = Limits(
        None if max_error_rate is None else parse_share(max_error_rate, "--max-error-rate"),
        None if max_class_error_rate is None else parse_share(max_class_error_rate, "--max-class-error-rate"),
        max_new,
    )
    raise typer.Exit(check_run(run, limits, against=against, summary=summary, junit=junit, as_json=as_json))


@app.command(rich_help_panel=JUDGE)
def compare(
    old: Annotated[str, typer.Argument(metavar="OLD", help="The earlier run.", show_default=False)],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The later run.", show_default=False)],
    top: Annotated[int, typer.Option(min=0, help="How many new findings to show; 0 for all.")] = 50,
    as_json: Json = False,
) -> None:
    """Show which findings of an older run are resolved, which remain, and which are new."""
    from sgoif.cli.compare import show_comparison

    show_comparison(old, new, top=top or None, as_json=as_json)


@app.command(rich_help_panel=JUDGE)
def verify(
    run: RunPath,
    page: Annotated[
        MaybeText, typer.Option(metavar="FILE.html", help="Write the sample as a page to decide on.")
    ] = None,
    verdicts: Annotated[
        MaybeTexts, typer.Option(metavar="FILE.csv", help="What the page gave; may be given several times.")
    ] = None,
    cards: Annotated[int, typer.Option(min=20, help="How many labels to check.")] = 60,
    images: Images = None,
    table: Annotated[MaybeText, typer.Option(metavar="FILE", help="Your CSV or Parquet with a column `id`.")] = None,
    text: Annotated[MaybeText, typer.Option(metavar="COLUMN", help="Its column of texts, to show them.")] = None,
    out: Annotated[
        str, typer.Option(metavar="FILE.csv", help="Where answers given in the terminal go.")
    ] = "verdicts.csv",
    seed: Annotated[int, typer.Option(min=0, help="Of the sample; another one draws other labels.")] = 0,
    as_json: Json = False,
) -> None:
    """Check a random sample of labels: how many of all are wrong, with an interval.

    Without options, asks in the terminal. With --page, writes a page to decide on; --verdicts takes its answers.
    """
    if page is not None and verdicts:
        raise SgoifError(
            "--page FILE.html draws a sample, and --verdicts FILE.csv reads what was found; pass one of them."
        )
    if (table is None) != (text is None):
        raise SgoifError("--table FILE and --text COLUMN go together.")
    from sgoif.cli.verify import ask, take_verdicts, write_sample

    if verdicts:
        return take_verdicts(run, verdicts, as_json=as_json)
    shown = None if table is None or text is None else (table, text)
    if page is not None:
        return write_sample(run, page=page, cards=cards, seed=seed, images=images, table=shown, as_json=as_json)
    if as_json:
        raise SgoifError("--json goes with --page or --verdicts; in the terminal, questions are asked.")
    ask(run, cards=cards, seed=seed, images=images, table=shown, out=out)


@app.command("apply", rich_help_panel=JUDGE)
def apply_(
    run: RunPath,
    out: Annotated[str, typer.Option(metavar="FILE", help="The manifest: .parquet or .csv.", show_default=False)],
    files: Annotated[
        MaybeTexts,
        typer.Argument(
            metavar="DECISIONS.csv...", help="One per person; or a JSON export of Label Studio.", show_default=False
        ),
    ] = None,
    relabel_from: Annotated[
        MaybeText, typer.Option(metavar="P", help="Labels so probably wrong take the suggestion, unseen: 95%.")
    ] = None,
    drop_from: Annotated[
        MaybeText, typer.Option(metavar="P", help="Examples with labels so probably wrong go, unseen.")
    ] = None,
    by: Annotated[MaybeText, typer.Option(metavar="COLUMN", help="Warn by a column of --table too.")] = None,
    table: Annotated[MaybeText, typer.Option(metavar="FILE", help="Your CSV or Parquet with a column `id`.")] = None,
    disagreements: Annotated[
        MaybeText, typer.Option(metavar="FILE.html", help="Write a page of what people disagree about.")
    ] = None,
    images: Images = None,
    as_json: Json = False,
) -> None:
    """Turn what people decided into a manifest to train on."""
    if (by is None) != (table is None):
        raise SgoifError("--by COLUMN and --table FILE go together.")
    if not files and relabel_from is None and drop_from is None:
        raise SgoifError("name the DECISIONS.csv of the page; or clean unseen, by --relabel-from or --drop-from.")
    from sgoif.cli.apply import show_apply
    from sgoif.cli.limits import parse_share

    show_apply(
        run,
        files or [],
        out=out,
        by=by,
        table=table,
        relabel_from=None if relabel_from is None else parse_share(relabel_from, "--relabel-from"),
        drop_from=None if drop_from is None else parse_share(drop_from, "--drop-from"),
        page=None if disagreements is None else (disagreements, images),
        as_json=as_json,
    )


@app.command(rich_help_panel=JUDGE)
def export(
    run: RunPath,
    to: Annotated[str, typer.Option(metavar="TOOL", help="cleanlab or label-studio.", show_default=False)],
    out: Annotated[str, typer.Option(metavar="FILE", help="Where to; .csv or .parquet, .json.", show_default=False)],
    images: Images = None,
    top: Annotated[int, typer.Option(min=0, help="How many tasks; 0 for all.")] = 500,
) -> None:
    """Write findings as files that other tools open."""
    from sgoif.cli.export import show_export

    show_export(run, to=to, out=out, images=images, top=top or None)


@app.command(rich_help_panel=JUDGE)
def holdout(
    run: RunPath,
    size: Annotated[int, typer.Option(min=1, help="How many examples to verify.")] = 300,
    out: Annotated[MaybeText, typer.Option(metavar="FILE.csv", help="Write the examples to verify here.")] = None,
    page: Annotated[MaybeText, typer.Option(metavar="FILE.html", help="Write them as a page to decide on.")] = None,
    images: Images = None,
    filled: Annotated[
        MaybeText, typer.Option(metavar="FILE.csv", help="That file filled in, or decisions of the page: merge it.")
    ] = None,
    verified: Annotated[MaybeText, typer.Option(metavar="FILE.csv", help="The file of all verified labels.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace --out even if it is filled in.")] = False,
    as_json: Json = False,
) -> None:
    """Verify the most doubtful hold-out labels by hand, for later runs to rest on.

    First --page verify.html, to decide on, or --out verify.csv, to fill in; then --filled FILE.csv --verified
    verified.csv.
    """
    if sum(option is not None for option in (out, page, filled)) != 1:
        raise SgoifError(
            "choose one of --page FILE.html or --out FILE.csv, to verify, and --filled FILE.csv, to merge."
        )
    from sgoif.cli.holdout import merge_filled, write_doubtful, write_doubtful_page

    if filled is not None:
        return merge_filled(run, filled=filled, verified=verified or "verified.csv", as_json=as_json)
    if page is not None:
        return write_doubtful_page(run, size=size, out=page, images=images, verified=verified, as_json=as_json)
    write_doubtful(run, size=size, out=str(out), verified=verified, force=force, as_json=as_json)
