"""``sgoif ood``: which of these pictures are out of distribution for the model?"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sgoif.cli.models import load_model
from sgoif.cli.output import count, emit_json, percent, print_lines, print_table, shorten
from sgoif.files.tables import write_csv
from sgoif.usercode import import_named

__all__ = ["OodSettings", "show_ood"]


@dataclass(frozen=True, slots=True)
class OodSettings:
    """What is looked at, by what."""

    scorer: str
    model: str
    data: str
    false_alarm_rate: float = 0.05
    transform: str | None = None
    batch: int = 256
    device: str = "cpu"


def show_ood(settings: OodSettings, *, top: int | None = 50, csv: str | None = None, as_json: bool = False) -> None:
    """Score pictures and print or write those that are most unlike."""
    import pyarrow as pa

    from sgoif.ood import OodScorer
    from sgoif.ood.stored import score_stored

    model = load_model(settings.model, settings.device)
    transform = None
    if settings.transform is not None:
        transform = import_named(settings.transform, "--transform")
    scorer = OodScorer.load(settings.scorer, model, batch_size=settings.batch)
    scorer.threshold(settings.false_alarm_rate)  # a rate that cannot be promised is refused before the work
    found = score_stored(scorer, settings.data, transform=transform)
    order = np.argsort(-found.scores, kind="stable")
    columns = scorer.judge(found.scores[order], false_alarm_rate=settings.false_alarm_rate)
    counts = {"num_pictures": len(order), "num_flagged": int(columns["flag"].sum()), "num_broken": len(found.broken)}
    table = pa.table({"id": [found.ids[i] for i in order], **columns}).slice(0, top)
    if csv is not None:
        write_csv(table, csv)
        print_lines([_said(settings, counts), f"{count(len(table), 'row')} written to {csv}."])
    elif as_json:
        broken = [{"id": id, "error": error} for id, error in found.broken]
        document = {"settings": asdict(settings), "counts": counts, "pictures": _finite(table), "broken": broken}
        emit_json({"command": "ood", "format": 1, **document})
    else:
        print_lines([_said(settings, counts), ""])
        _print(table.to_pylist())


def _said(settings: OodSettings, counts: dict[str, int]) -> str:
    rate = percent(settings.false_alarm_rate)
    said = (
        f"{count(counts['num_flagged'])} of {count(counts['num_pictures'], 'picture')} raise an alarm; of "
        f"in-distribution ones {rate} would."
    )
    broken = counts["num_broken"]
    return said if not broken else f"{said} {count(broken, 'picture')} could not be read."


def _finite(table: Any) -> list[dict[str, Any]]:
    """Rows for JSON, which knows no infinity."""
    rows: list[dict[str, Any]] = table.to_pylist()
    return [{**row, "raw_score": row["raw_score"] if np.isfinite(row["raw_score"]) else None} for row in rows]


def _print(rows: list[dict[str, Any]]) -> None:
    print_table(
        ["id", "unlike", "alarm", "sure", "raw score"],
        [
            [
                shorten(row["id"]),
                f"{row['score']:.3f}",
                "yes" if row["flag"] else "",
                percent(row["confidence"]),
                f"{row['raw_score']:.2f}",
            ]
            for row in rows
        ],
        right=["unlike", "sure", "raw score"],
        shrink=["id"],
    )
