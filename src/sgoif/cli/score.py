"""``sgoif score``: data and a snapshot in, a run and its worst labels out."""

from __future__ import annotations

import shlex
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sgoif.cli.issues import show_labels
from sgoif.cli.models import load_model, load_transform
from sgoif.cli.options import Device, Json, MaybeText, Model, Size, Transform, require
from sgoif.cli.output import count, emit_json, print_lines
from sgoif.cli.progress import progress_bars
from sgoif.cli.run import open_run
from sgoif.errors import SgoifError

if TYPE_CHECKING:
    from sgoif.run import Run
    from sgoif.scoring.engines import Engine

_SHOWN = 20
_COUNTS = ("num_scored", "num_copied", "num_passed_over", "num_quarantined", "num_pieces", "seconds")


def score(
    snapshot: Annotated[
        str,
        typer.Argument(
            metavar="SNAPSHOT", help="Read the file or URL that `monitor.snapshot` wrote.", show_default=False
        ),
    ],
    model: Model,
    data: Annotated[str, require("DATA", "Read Parquet, tar shards or class folders, here or at a URL.")],
    out: Annotated[str, require("RUN", "Write the run here, or resume it.")],
    only_unjudged: Annotated[
        MaybeText, typer.Option(metavar="RUN", help="Score what this run has not judged, and copy the rest.")
    ] = None,
    engine: Annotated[
        str, typer.Option(metavar="local|ray", help="Work in this process, or in actors of a Ray cluster.")
    ] = "local",
    actors: Annotated[int, typer.Option(metavar="N", min=1, help="Start this many Ray actors.")] = 2,
    cpus: Annotated[float, typer.Option(metavar="N", min=0, help="Reserve this many CPUs for each actor.")] = 1.0,
    gpus: Annotated[
        float, typer.Option(metavar="N", min=0, help="Reserve this many GPUs for each actor, with --device cuda.")
    ] = 0.0,
    transform: Transform = None,
    batch: Size = 256,
    decoders: Annotated[int, typer.Option(metavar="N", min=0, help="Decode ahead in this many threads.")] = 0,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Judge the labels of any data by a snapshot of a training; resumes where it was stopped."""
    from sgoif.scoring.score import score as score_data

    settings: dict[str, Any] = {
        "snapshot": snapshot,
        "model": model,
        "data": data,
        "out": out,
        "only_unjudged": only_unjudged,
    }
    settings |= {"transform": transform, "batch": batch, "decoders": decoders, "device": device}
    chosen = _make_engine(engine, actors, cpus, gpus)
    prepare = load_transform(transform)
    with progress_bars() as bars:
        score_data(
            snapshot,
            partial(load_model, model, device),
            data,
            out,
            only_unjudged=only_unjudged,
            engine=chosen,
            transform=prepare,
            batch_size=batch,
            decoders=decoders,
            device=device,
            progress=bars,
        )
    run = open_run(out)
    found, table = run.summary(), run.label_issues(top=_SHOWN)
    if as_json:
        document = {"counts": {name: run.info.get(name) for name in _COUNTS}, "summary": found.document()}
        return emit_json("score", run=out, settings=settings, **document, issues=table.to_pylist())
    print_lines([*found.lines(), _describe_counts(run), ""])
    show_labels(run, table)
    next_step = f"  sgoif issues {shlex.quote(out)} --top 200 --csv review.csv"
    print_lines(["", f"The run is in {out}. Next:", next_step])


def _make_engine(name: str, actors: int, cpus: float, gpus: float) -> Engine:
    if name == "local":
        from sgoif.scoring.engines import LocalEngine

        return LocalEngine()
    if name == "ray":
        from sgoif.scoring.on_ray import RayEngine

        return RayEngine(actors, cpus, gpus)
    raise SgoifError(f"--engine is local or ray, got {name!r}.")


def _describe_counts(run: Run) -> str:
    numbers = {name: value if isinstance(value := run.info.get(name), int) else 0 for name in _COUNTS}
    texts = {
        "num_copied": "copied from the run that had judged them",
        "num_passed_over": "passed over, held out or judged before",
        "num_quarantined": "put aside, see quarantine/",
    }
    parts = [f"{count(numbers[name])} {text}" for name, text in texts.items() if numbers[name]]
    return ", ".join([f"{count(numbers['num_scored'], 'example')} scored now", *parts]) + "."
