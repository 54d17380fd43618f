"""``sgoif sentinel``: has the distribution of this stream of pictures shifted?"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sgoif.cli.errors import EXCEEDED, FINE
from sgoif.cli.models import load_model, load_transform
from sgoif.cli.options import Device, Json, MaybeText, Model, Transform, how_many, require
from sgoif.cli.output import count, emit_json, print_lines, print_table
from sgoif.errors import SgoifError

if TYPE_CHECKING:
    from sgoif.shift import ShiftReading

_MOVED = {
    "unlike": "how unlike the pictures are",
    "classes": "the mix of predicted classes",
    "features": "what the layers see",
}


def sentinel(
    sentinel: Annotated[
        str,
        typer.Argument(metavar="SENTINEL", help="Read the file that `ShiftSentinel.save` wrote.", show_default=False),
    ],
    model: Model,
    data: Annotated[str, require("DATA", "Read pictures from this folder or Parquet file, in its order.")],
    out: Annotated[
        MaybeText, typer.Option(metavar="FILE", help="Write the sentinel in its new state, to continue from there.")
    ] = None,
    transform: Transform = None,
    top: Annotated[int, how_many("batches")] = 20,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Detect distribution shift in a stream of pictures; exit code 1 after an alarm."""
    from sgoif.ood.stored import Broken, stored_batches
    from sgoif.shift import ShiftSentinel

    loaded = load_model(model, device)
    prepare = load_transform(transform)
    fitted = ShiftSentinel.load(sentinel, loaded)
    broken: Broken = []
    sizes, readings = [], []
    for ids, inputs in stored_batches(data, loaded, fitted.batch_size, broken, transform=prepare):
        sizes.append(len(ids))
        readings.append(fitted.update(inputs))
    if not readings:
        raise SgoifError(f"none of the pictures in '{data}' could be read: {broken[0][1]}")
    if out is not None:
        fitted.save(out)
    alarm = next((reading for reading in readings if reading.is_alarm), None)
    nearest = sorted(readings, key=lambda reading: -reading.nearness)[: top or None]
    shown = sorted(nearest, key=lambda reading: reading.batch)
    if as_json:
        settings: dict[str, Any] = {
            "sentinel": sentinel,
            "model": model,
            "data": data,
            "transform": transform,
            "device": device,
        }
        settings |= {"out": out, "batch": fitted.batch_size, "false_alarms": fitted.false_alarms}
        emit_json(
            "sentinel",
            settings=settings,
            counts={"num_pictures": sum(sizes), "num_batches": len(readings), "num_broken": len(broken)},
            alarm=None if alarm is None else asdict(alarm),
            batches=[asdict(reading) for reading in shown],
            broken=[{"id": id, "error": error} for id, error in broken],
        )
    else:
        seen = f"{count(sum(sizes), 'picture')} in {count(len(readings))} batches"
        rate = f"once in {count(round(1 / fitted.false_alarms))} batches"
        lines = [f"{seen}; a stream without a shift raises an alarm {rate}."]
        lines += [f"{count(len(broken), 'picture')} could not be read."] if broken else []
        print_lines([*lines, _describe_alarm(alarm), ""])
        columns = {
            "batch": lambda reading: f"{reading.batch:,}",
            "nearness": lambda reading: f"{reading.nearness:.2f}",
            "usual once in": lambda reading: (
                f"{reading.once_in:,.0f}" if reading.once_in < 1e6 else f"{reading.once_in:.0e}"
            ),
            "alarm": lambda reading: "yes" if reading.is_alarm else "",
            "moved most": lambda reading: reading.part,
            "since batch": lambda reading: f"{reading.changed_at:,}",
        }
        print_table(shown, columns, right=["batch", "nearness", "usual once in", "since batch"])
    raise typer.Exit(FINE if alarm is None else EXCEEDED)


def _describe_alarm(alarm: ShiftReading | None) -> str:
    if alarm is None:
        return "No alarm."
    since = f"most likely changed with batch {alarm.changed_at:,}"
    return f"Alarm at batch {alarm.batch:,}, {since}: {_MOVED[alarm.part]}."
