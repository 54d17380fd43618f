"""Commands about this machine and what watching costs on it. The work is in the files of their names."""

from __future__ import annotations

from typing import Annotated

import typer

from sgoif.cli.program import SET_UP, Classes, Device, Json, MaybeText, Model, Shape, Size, app


@app.command(rich_help_panel=SET_UP)
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


@app.command(rich_help_panel=SET_UP)
def bench(
    model: Model,
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
