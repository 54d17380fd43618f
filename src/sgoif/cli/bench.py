"""``sgoif bench``: what watching costs on a model of the user's own, measured step by step beside bare training."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any

import typer

from sgoif.cli.models import load_model, parse_shape, random_batch
from sgoif.cli.options import Classes, Device, Json, MaybeText, Model, Shape, Size
from sgoif.cli.output import clean, emit_json, print_lines, stderr_console
from sgoif.errors import SgoifError

_DTYPES = {"bf16": "bfloat16", "bfloat16": "bfloat16", "fp16": "float16", "float16": "float16"}


def bench(
    model: Model,
    shape: Shape = "3,32,32",
    batch: Size = 250,
    classes: Classes = 10,
    blocks: Annotated[
        int, typer.Option(metavar="N", min=2, help="Measure this many blocks of steps of each kind, an even number.")
    ] = 6,
    device: Device = "cpu",
    autocast: Annotated[MaybeText, typer.Option(metavar="DTYPE", help="Train in bf16 or fp16.")] = None,
    as_json: Json = False,
) -> None:
    """Measure what watching a model costs, beside the same training without."""
    import torch

    from sgoif.overhead import bench as measure

    if blocks % 2:
        raise SgoifError(f"--blocks must be even, since a round has two of each kind, got {blocks}.")
    if autocast is not None and autocast not in _DTYPES:
        raise SgoifError(f"--autocast takes {', '.join(_DTYPES)}, got {autocast!r}.")
    dtype = None if autocast is None else getattr(torch, _DTYPES[autocast])
    loaded = load_model(model, device)
    examples = random_batch(loaded, parse_shape(shape), batch, classes)
    with stderr_console().status(f"training {clean(model)} with and without the monitor"):
        found = measure(loaded, examples, blocks=blocks, autocast=dtype)
    if as_json:
        values: dict[str, Any] = {item.name: getattr(found, item.name) for item in fields(found)}
        values.pop("timings", None)
        return emit_json("bench", model=model, device=device, batch=batch, **values)
    where = torch.cuda.get_device_name(torch.device(device)) if device.startswith("cuda") else device.upper()
    print_lines([f"{clean(model)}, batches of {batch} random inputs, measured on {where}:", str(found)])
