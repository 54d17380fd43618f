"""Commands that ask a model about pictures. What a command does is in the file of its name."""

from __future__ import annotations

from typing import Annotated

import typer

from sgoif.cli.program import ASK, Device, Json, MaybeText, Model, RunPath, Size, Transform, app
from sgoif.errors import SgoifError


@app.command(rich_help_panel=ASK)
def ood(
    scorer: Annotated[str, typer.Argument(metavar="SCORER", help="File of `OodScorer.save`.", show_default=False)],
    model: Model,
    data: Annotated[str, typer.Option(metavar="DATA", help="Folder of pictures, or Parquet.", show_default=False)],
    rate: Annotated[
        str,
        typer.Option("--false-alarms", metavar="SHARE", help="Share of in-distribution pictures that raise an alarm."),
    ] = "5%",
    transform: Transform = None,
    top: Annotated[int, typer.Option(min=0, help="How many pictures; 0 for all.")] = 50,
    csv: Annotated[MaybeText, typer.Option(metavar="FILE", help="Write them as CSV.")] = None,
    batch: Size = 256,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Show which pictures are out of distribution for the model."""
    if csv is not None and as_json:
        raise SgoifError("choose one of --csv and --json.")
    from sgoif.cli.limits import parse_share
    from sgoif.cli.ood import OodSettings, show_ood

    settings = OodSettings(scorer, model, data, parse_share(rate, "--false-alarms"), transform, batch, device)
    show_ood(settings, top=top or None, csv=csv, as_json=as_json)


@app.command(rich_help_panel=ASK)
def explain(
    run: RunPath,
    model: Model,
    data: Annotated[
        str, typer.Option(metavar="DATA", help="What it was trained on: class folders, Parquet.", show_default=False)
    ],
    queries: Annotated[
        str, typer.Option(metavar="DIR", help="Pictures that it gets wrong; folder or Parquet.", show_default=False)
    ],
    target: Annotated[str, typer.Option(metavar="CLASS", help="What it takes them for.", show_default=False)],
    transform: Transform = None,
    top: Annotated[int, typer.Option(min=0, help="How many examples; 0 for all.")] = 50,
    csv: Annotated[MaybeText, typer.Option(metavar="FILE", help="Write them as CSV.")] = None,
    page: Annotated[MaybeText, typer.Option(metavar="FILE.html", help="Write a page to look and decide.")] = None,
    batch: Size = 256,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Show which training pictures caused a bad prediction: those of a backdoor, for example."""
    if csv is not None and as_json:
        raise SgoifError("choose one of --csv and --json.")
    from sgoif.cli.explain import ExplainSettings, show_explanation

    settings = ExplainSettings(run, model, data, queries, target, transform, batch, device)
    show_explanation(settings, top=top or None, csv=csv, page=page, as_json=as_json)


@app.command(rich_help_panel=ASK)
def sentinel(
    sentinel: Annotated[
        str, typer.Argument(metavar="SENTINEL", help="File of `ShiftSentinel.save`.", show_default=False)
    ],
    model: Model,
    data: Annotated[
        str, typer.Option(metavar="DATA", help="Folder of pictures, or Parquet, in its order.", show_default=False)
    ],
    out: Annotated[
        MaybeText, typer.Option(metavar="FILE", help="Write the sentinel as it stands then, to go on from there.")
    ] = None,
    transform: Transform = None,
    top: Annotated[int, typer.Option(min=0, help="How many batches; 0 for all.")] = 20,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Detect distribution shift in a stream of pictures; exit code 1 after an alarm."""
    from sgoif.cli.sentinel import SentinelSettings, show_sentinel

    settings = SentinelSettings(sentinel, model, data, transform, device, out)
    raise typer.Exit(show_sentinel(settings, top=top or None, as_json=as_json))
