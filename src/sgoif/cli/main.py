"""Parses the command line. What a command does is in the file of its name, imported when it is called."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from sgoif.cli.front import Front
from sgoif.errors import SgoifError

__all__ = ["app"]

app = typer.Typer(
    cls=Front,
    help="Finds wrong labels in training data: which ones, how sure that is, and whether the data is good enough.",
    epilog="Start with `sgoif scan FOLDER`. Runs are folders or URLs such as s3://bucket/run.",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_FIND, _JUDGE, _SET_UP = "Find wrong labels", "Judge and improve", "Set up"

RunPath = Annotated[str, typer.Argument(metavar="RUN", help="Folder or URL of a run.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Size = Annotated[int, typer.Option(min=1, help="Examples in a batch.")]
Classes = Annotated[int, typer.Option(min=2, help="Classes that the model tells apart.")]
Shape = Annotated[str, typer.Option("--input", metavar="C,H,W", help="Shape of one example.")]
Device = Annotated[str, typer.Option(help="Where to put the model: cpu, cuda, cuda:1, mps.")]
MaybeText = Optional[str]  # noqa: UP045 - older typer reads no `|` on Python 3.10
MaybeTexts = Optional[list[str]]  # noqa: UP045
MaybeInt = Optional[int]  # noqa: UP045
MaybeFloat = Optional[float]  # noqa: UP045
Images = Annotated[
    MaybeText, typer.Option(metavar="DIR|URL|MODULE:FUNCTION", help="Where pictures are; known for a scan.")
]


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from sgoif import __version__

        typer.echo(f"sgoif {__version__}")
        raise typer.Exit


@app.callback()
def front(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", is_eager=True, callback=_print_version)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; also SGOIF_DEBUG=1.")] = False,
) -> None:
    """Take the options that every command has."""


@app.command(rich_help_panel=_FIND)
def scan(
    data: Annotated[
        MaybeText,
        typer.Argument(metavar="DATA", help="Folder of class folders, or Parquet with pictures.", show_default=False),
    ] = None,
    out: Annotated[
        MaybeText, typer.Option(metavar="RUN", help="Where the run goes; sgoif-runs/... by default.")
    ] = None,
    features: Annotated[MaybeText, typer.Option(metavar="FILE", help="Embeddings by id: .npy or .parquet.")] = None,
    backbone: Annotated[MaybeText, typer.Option(metavar="MODULE:FACTORY", help="A frozen model that embeds.")] = None,
    verified: Annotated[MaybeText, typer.Option(metavar="FILE", help="Verified labels, of `sgoif holdout`.")] = None,
    epochs: Annotated[MaybeInt, typer.Option(min=1, help="Of the training; chosen for you.")] = None,
    seed: Annotated[MaybeInt, typer.Option(min=0, help="Of all that is drawn; 0 by default.")] = None,
    config: Annotated[MaybeText, typer.Option(metavar="scan.yaml", help="Repeat a scan; options override it.")] = None,
    as_json: Json = False,
) -> None:
    """Find the wrong labels of a dataset, from pictures or embeddings."""
    from sgoif.cli.settings import ScanSettings, read_settings

    options = {
        "data": data,
        "features": features,
        "backbone": backbone,
        "verified": verified,
        "epochs": epochs,
        "seed": seed,
    }
    values = {} if config is None else read_settings(config)
    values |= {name: value for name, value in options.items() if value is not None}
    if values.get("data") is None:
        raise SgoifError("name the DATA to scan: a folder of class folders, or a Parquet file with pictures.")
    from sgoif.cli.scan import show_scan

    show_scan(ScanSettings(**values), out=out, as_json=as_json)


@app.command(rich_help_panel=_FIND)
def score(
    snapshot: Annotated[
        str, typer.Argument(metavar="SNAPSHOT", help="File or URL of `monitor.snapshot`.", show_default=False)
    ],
    model: Annotated[str, typer.Option(metavar="MODULE:FACTORY", help="Makes the model.", show_default=False)],
    data: Annotated[
        str, typer.Option(metavar="DATA", help="Parquet, tar shards or class folders; a URL too.", show_default=False)
    ],
    out: Annotated[str, typer.Option(metavar="RUN", help="Where the run goes, or goes on.", show_default=False)],
    only_unjudged: Annotated[
        MaybeText, typer.Option(metavar="RUN", help="Score what this run has not judged, copy the rest.")
    ] = None,
    engine: Annotated[str, typer.Option(metavar="local|ray", help="This process, or actors of a cluster.")] = "local",
    actors: Annotated[int, typer.Option(min=1, help="Of the engine ray.")] = 2,
    cpus: Annotated[float, typer.Option(min=0, help="Of each actor.")] = 1.0,
    gpus: Annotated[float, typer.Option(min=0, help="Of each actor; with --device cuda.")] = 0.0,
    transform: Annotated[
        MaybeText, typer.Option(metavar="MODULE:FUNCTION", help="PIL picture to input; the model's own by default.")
    ] = None,
    batch: Size = 256,
    decoders: Annotated[int, typer.Option(min=0, help="Threads that decode ahead.")] = 0,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Judge the labels of any data by a snapshot of a training; goes on where it was stopped."""
    from sgoif.cli.score import ScoreSettings, show_score

    settings = ScoreSettings(snapshot, model, data, out, only_unjudged, transform, batch, decoders, device)
    show_score(settings, engine=engine, actors=actors, cpus=cpus, gpus=gpus, as_json=as_json)


@app.command(rich_help_panel=_FIND)
def ood(
    scorer: Annotated[str, typer.Argument(metavar="SCORER", help="File of `OodScorer.save`.", show_default=False)],
    model: Annotated[str, typer.Option(metavar="MODULE:FACTORY", help="Makes the model.", show_default=False)],
    data: Annotated[str, typer.Option(metavar="DATA", help="Folder of pictures, or Parquet.", show_default=False)],
    rate: Annotated[str, typer.Option("--false-alarms", metavar="SHARE", help="Of usual pictures.")] = "5%",
    transform: Annotated[
        MaybeText, typer.Option(metavar="MODULE:FUNCTION", help="PIL picture to input; the model's own by default.")
    ] = None,
    top: Annotated[int, typer.Option(min=0, help="How many pictures; 0 for all.")] = 50,
    csv: Annotated[MaybeText, typer.Option(metavar="FILE", help="Write them as CSV.")] = None,
    batch: Size = 256,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Show which pictures are unlike those that the model was made for."""
    if csv is not None and as_json:
        raise SgoifError("choose one of --csv and --json.")
    from sgoif.cli.limits import parse_share
    from sgoif.cli.ood import OodSettings, show_ood

    settings = OodSettings(scorer, model, data, parse_share(rate, "--false-alarms"), transform, batch, device)
    show_ood(settings, top=top or None, csv=csv, as_json=as_json)


@app.command(rich_help_panel=_FIND)
def issues(
    run: RunPath,
    top: Annotated[int, typer.Option(min=0, help="How many labels; 0 for all.")] = 50,
    csv: Annotated[MaybeText, typer.Option(metavar="FILE", help="Write the labels as CSV.")] = None,
    parquet: Annotated[MaybeText, typer.Option(metavar="FILE", help="Write the labels as Parquet.")] = None,
    as_json: Json = False,
    of_class: Annotated[MaybeText, typer.Option("--class", metavar="NAME", help="Only labels of this class.")] = None,
    min_p: Annotated[MaybeFloat, typer.Option(min=0, max=1, help="Only labels this probably wrong.")] = None,
    by: Annotated[MaybeText, typer.Option(metavar="COLUMN", help="Error rates by a column of --table.")] = None,
    table: Annotated[MaybeText, typer.Option(metavar="FILE", help="Your CSV or Parquet with a column `id`.")] = None,
) -> None:
    """Show the labels that are most probably wrong."""
    if sum([csv is not None, parquet is not None, as_json]) > 1:
        raise SgoifError("choose one of --csv, --parquet and --json.")
    if (by is None) != (table is None):
        raise SgoifError("--by COLUMN and --table FILE go together.")
    from sgoif.cli.issues import show_groups, show_issues

    if by is not None and table is not None:
        if csv is not None or parquet is not None or of_class is not None or min_p is not None:
            raise SgoifError("--by goes with --table and --json only.")
        return show_groups(run, by=by, table=table, as_json=as_json)
    show_issues(run, top=top or None, csv=csv, parquet=parquet, as_json=as_json, of_class=of_class, min_p=min_p)


@app.command(rich_help_panel=_FIND)
def classes(run: RunPath, as_json: Json = False) -> None:
    """Show error rates by class, and whether a class is mislabelled or overlaps with another."""
    from sgoif.cli.classes import show_classes

    show_classes(run, as_json=as_json)


@app.command(rich_help_panel=_FIND)
def duplicates(
    run: RunPath,
    top: Annotated[int, typer.Option(min=0, help="How many pairs; 0 for all.")] = 50,
    csv: Annotated[MaybeText, typer.Option(metavar="FILE", help="Write the pairs as CSV.")] = None,
    as_json: Json = False,
) -> None:
    """Show examples that are the same or nearly, those with differing labels first."""
    if csv is not None and as_json:
        raise SgoifError("choose one of --csv and --json.")
    from sgoif.cli.duplicates import show_duplicates

    show_duplicates(run, top=top or None, csv=csv, as_json=as_json)


@app.command(rich_help_panel=_FIND)
def report(
    run: RunPath,
    out: Annotated[str, typer.Option(metavar="FILE.html", help="Where the page goes.")] = "report.html",
    images: Images = None,
    top: Annotated[int, typer.Option(min=0, help="How many examples; 0 for all.")] = 500,
    pictures: Annotated[
        str, typer.Option(metavar="embed|link|none", help="Put them in, link to them, or not.")
    ] = "embed",
    decisions: Annotated[
        MaybeTexts, typer.Option(metavar="FILE.csv", help="Earlier decisions, not to be asked again; may be repeated.")
    ] = None,
    reviewers: Annotated[MaybeText, typer.Option(metavar="ANN,BO", help="One page each, with checks mixed in.")] = None,
    overlap: Annotated[str, typer.Option(metavar="SHARE", help="Of the cards that all reviewers get.")] = "5%",
    checks: Annotated[str, typer.Option(metavar="SHARE", help="Random examples among the cards.")] = "5%",
    blind: Annotated[bool, typer.Option("--blind", help="Hide what the run suggests.")] = False,
    title: Annotated[MaybeText, typer.Option(help="Of the page.")] = None,
    as_json: Json = False,
) -> None:
    """Write a page to look at the findings and decide: one HTML file, no server."""
    from sgoif.cli.limits import parse_share
    from sgoif.cli.report import show_report

    show_report(
        run,
        out=out,
        images=images,
        top=top or None,
        pictures=pictures,
        decisions=decisions or (),
        reviewers=[name.strip() for name in (reviewers or "").split(",") if name.strip()],
        overlap=parse_share(overlap, "--overlap"),
        checks=parse_share(checks, "--checks"),
        blind=blind,
        title=title,
        as_json=as_json,
    )


@app.command(rich_help_panel=_FIND)
def info(run: RunPath, as_json: Json = False) -> None:
    """Show how a run went: state, cost, faults, calibration, versions."""
    from sgoif.cli.info import show_info

    show_info(run, as_json=as_json)


@app.command(rich_help_panel=_JUDGE)
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
    """Hold a run against limits: exit 0 fine, 1 exceeded, 2 could not judge.

    A limit is exceeded when the lower end of the 90% interval lies above it.
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


@app.command(rich_help_panel=_JUDGE)
def compare(
    old: Annotated[str, typer.Argument(metavar="OLD", help="The earlier run.", show_default=False)],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The later run.", show_default=False)],
    top: Annotated[int, typer.Option(min=0, help="How many new findings to show; 0 for all.")] = 50,
    as_json: Json = False,
) -> None:
    """Show which findings of an older run are resolved, which remain, and which are new."""
    from sgoif.cli.compare import show_comparison

    show_comparison(old, new, top=top or None, as_json=as_json)


@app.command("apply", rich_help_panel=_JUDGE)
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


@app.command(rich_help_panel=_JUDGE)
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


@app.command(rich_help_panel=_JUDGE)
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


@app.command(rich_help_panel=_SET_UP)
def doctor(
    model: Annotated[
        MaybeText, typer.Option(metavar="MODULE:FACTORY", help="Forecast the cost for this model.")
    ] = None,
    shape: Shape = "3,32,32",
    batch: Size = 250,
    classes: Classes = 10,
    train_size: Annotated[int, typer.Option(min=1, help="Training examples.")] = 50_000,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Look at this machine, and forecast what watching a model will cost."""
    from sgoif.cli.doctor import show_doctor

    show_doctor(
        model=model, shape=shape, batch=batch, classes=classes, train_size=train_size, device=device, as_json=as_json
    )


@app.command(rich_help_panel=_SET_UP)
def bench(
    model: Annotated[str, typer.Option(metavar="MODULE:FACTORY", help="Makes the model.", show_default=False)],
    shape: Shape = "3,32,32",
    batch: Size = 250,
    classes: Classes = 10,
    blocks: Annotated[int, typer.Option(min=2, help="Blocks of steps of each kind; even.")] = 6,
    device: Device = "cpu",
    autocast: Annotated[MaybeText, typer.Option(metavar="DTYPE", help="Train in bf16 or fp16.")] = None,
    as_json: Json = False,
) -> None:
    """Measure what watching a model costs, beside the same training without."""
    from sgoif.cli.bench import show_bench

    show_bench(
        model=model,
        shape=shape,
        batch=batch,
        classes=classes,
        blocks=blocks,
        device=device,
        autocast=autocast,
        as_json=as_json,
    )


if __name__ == "__main__":
    app()
