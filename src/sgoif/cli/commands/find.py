"""Commands that find wrong labels and show them. What a command does is in the file of its name."""

from __future__ import annotations

from typing import Annotated

import typer

from sgoif.cli.program import (
    FIND,
    Device,
    Images,
    Json,
    MaybeFloat,
    MaybeInt,
    MaybeText,
    MaybeTexts,
    Model,
    RunPath,
    Size,
    Transform,
    app,
)
from sgoif.errors import SgoifError


@app.command(rich_help_panel=FIND)
def scan(
    data: Annotated[
        MaybeText,
        typer.Argument(metavar="DATA", help="Folder of class folders, or Parquet with pictures.", show_default=False),
    ] = None,
    out: Annotated[
        MaybeText, typer.Option(metavar="RUN", help="Where the run goes; sgoif-runs/... by default.")
    ] = None,
    features: Annotated[
        MaybeText,
        typer.Option(
            metavar="FILE",
            help="Embeddings: .npy with one row per example in the order of the data (sorted paths of a folder, rows "
            "of Parquet); or by id: .npz with `ids` and `features`, .parquet with a column `id`.",
        ),
    ] = None,
    feature_ids: Annotated[
        MaybeText, typer.Option(metavar="FILE", help="One id per line, in the order of the rows of a .npy file.")
    ] = None,
    backbone: Annotated[
        MaybeText,
        typer.Option(
            metavar="MODULE:FACTORY",
            help="Called without arguments, makes a frozen model from float32 pictures \\[B, 3, S, S] in 0..1 to "
            "embeddings \\[B, D]; S is its attribute input_size, else 224.",
        ),
    ] = None,
    verified: Annotated[MaybeText, typer.Option(metavar="FILE", help="Verified labels, of `sgoif holdout`.")] = None,
    epochs: Annotated[MaybeInt, typer.Option(min=1, help="Of the training; chosen for you.")] = None,
    seed: Annotated[MaybeInt, typer.Option(min=0, help="Of all that is drawn; 0 by default.")] = None,
    config: Annotated[
        MaybeText,
        typer.Option(metavar="scan.yaml", help="Repeat a scan; options override it. A --backbone is named again."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Find the wrong labels of a dataset, from pictures or embeddings."""
    from sgoif.cli.scan import show_scan
    from sgoif.cli.settings import merge_settings

    options = {
        "data": data,
        "features": features,
        "feature_ids": feature_ids,
        "backbone": backbone,
        "verified": verified,
        "epochs": epochs,
        "seed": seed,
    }
    show_scan(merge_settings(config, options), out=out, as_json=as_json)


@app.command(rich_help_panel=FIND)
def score(
    snapshot: Annotated[
        str, typer.Argument(metavar="SNAPSHOT", help="File or URL of `monitor.snapshot`.", show_default=False)
    ],
    model: Model,
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
    transform: Transform = None,
    batch: Size = 256,
    decoders: Annotated[int, typer.Option(min=0, help="Threads that decode ahead.")] = 0,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Judge the labels of any data by a snapshot of a training; goes on where it was stopped."""
    from sgoif.cli.score import ScoreSettings, show_score

    settings = ScoreSettings(snapshot, model, data, out, only_unjudged, transform, batch, decoders, device)
    show_score(settings, engine=engine, actors=actors, cpus=cpus, gpus=gpus, as_json=as_json)


@app.command(rich_help_panel=FIND)
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


@app.command(rich_help_panel=FIND)
def classes(run: RunPath, as_json: Json = False) -> None:
    """Show error rates by class, and whether a class is mislabelled or overlaps with another."""
    from sgoif.cli.classes import show_classes

    show_classes(run, as_json=as_json)


@app.command(rich_help_panel=FIND)
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


@app.command(rich_help_panel=FIND)
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
    from sgoif.report.make import ReportSettings

    settings = ReportSettings(
        images=images,
        top=top or None,
        pictures=pictures,  # type: ignore[arg-type]
        decisions=decisions or (),
        reviewers=[name.strip() for name in (reviewers or "").split(",") if name.strip()],
        overlap=parse_share(overlap, "--overlap"),
        checks=parse_share(checks, "--checks"),
        blind=blind,
        title=title,
    )
    show_report(run, out, settings, as_json=as_json)


@app.command(rich_help_panel=FIND)
def info(run: RunPath, as_json: Json = False) -> None:
    """Show how a run went: state, cost, faults, calibration, versions."""
    from sgoif.cli.info import show_info

    show_info(run, as_json=as_json)
