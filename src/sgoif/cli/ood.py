"""``sgoif ood``: which of these pictures are out of distribution for the model?"""

from __future__ import annotations

import math
from typing import Annotated, Any

import typer

from sgoif.cli.models import load_model, load_transform
from sgoif.cli.options import Csv, Device, Json, Model, Size, Transform, how_many, need_one_of, parse_share, require
from sgoif.cli.output import count, emit_json, percent, print_lines, print_table, shorten
from sgoif.files.tables import write_csv


def ood(
    scorer: Annotated[
        str, typer.Argument(metavar="SCORER", help="Read the file that `OodScorer.save` wrote.", show_default=False)
    ],
    model: Model,
    data: Annotated[str, require("DATA", "Read pictures from this folder or Parquet file.")],
    rate: Annotated[
        str,
        typer.Option(
            "--false-alarms", metavar="SHARE", help="Let this share of in-distribution pictures raise an alarm."
        ),
    ] = "5%",
    transform: Transform = None,
    top: Annotated[int, how_many("pictures")] = 50,
    csv: Csv = None,
    batch: Size = 256,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Show which pictures are out of distribution for the model."""
    need_one_of(csv=csv, json=as_json)
    share = parse_share(rate, "--false-alarms")
    import numpy as np
    import pyarrow as pa

    from sgoif.ood import OodScorer
    from sgoif.ood.stored import score_stored

    loaded = load_model(model, device)
    prepare = load_transform(transform)
    fitted = OodScorer.load(scorer, loaded, batch_size=batch)
    fitted.threshold(share)  # a rate that cannot be promised is refused before the work
    found = score_stored(fitted, data, transform=prepare)
    order = np.argsort(-found.scores, kind="stable")
    columns = fitted.judge(found.scores[order], false_alarm_rate=share)
    counts = {"num_pictures": len(order), "num_flagged": int(columns["flag"].sum()), "num_broken": len(found.broken)}
    table = pa.table({"id": [found.ids[i] for i in order], **columns}).slice(0, top or None)
    said = f"{count(counts['num_flagged'])} of {count(len(order), 'picture')} raise an alarm; of in-distribution ones "
    said += f"{percent(share)} would."
    if found.broken:
        said += f" {count(len(found.broken), 'picture')} could not be read."
    if csv is not None:
        write_csv(table, csv)
        return print_lines([said, f"{count(len(table), 'row')} written to {csv}."])
    rows = table.to_pylist()
    if as_json:
        settings: dict[str, Any] = {
            "scorer": scorer,
            "model": model,
            "data": data,
            "false_alarm_rate": share,
            "transform": transform,
        }
        settings |= {"batch": batch, "device": device}
        finite = [{**row, "raw_score": row["raw_score"] if math.isfinite(row["raw_score"]) else None} for row in rows]
        broken = [{"id": id, "error": error} for id, error in found.broken]
        return emit_json("ood", settings=settings, counts=counts, pictures=finite, broken=broken)
    print_lines([said, ""])
    print_table(
        rows,
        {
            "id": lambda row: shorten(row["id"]),
            "unlike": lambda row: f"{row['score']:.3f}",
            "alarm": lambda row: "yes" if row["flag"] else "",
            "sure": lambda row: percent(row["confidence"]),
            "raw score": lambda row: f"{row['raw_score']:.2f}",
        },
        right=["unlike", "sure", "raw score"],
        shrink=["id"],
    )
