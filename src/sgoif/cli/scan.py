"""``sgoif scan``: a folder of pictures in, a run and its worst labels out."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from sgoif.cli.issues import named_rows, show_rows
from sgoif.cli.models import find_here
from sgoif.cli.opened import open_run
from sgoif.cli.output import emit_json, print_lines, stderr_console
from sgoif.cli.settings import ScanSettings, settings_text
from sgoif.cli.summary import summarise
from sgoif.errors import SgoifError
from sgoif.store.info import find_info
from sgoif.store.places import place_of

if TYPE_CHECKING:
    from rich.progress import TaskID

__all__ = ["default_out", "progress_bars", "show_scan"]

Told = Callable[[str, int, int], None]

_SHOWN = 20
_SETTINGS_FILE = "scan.yaml"


def show_scan(settings: ScanSettings, *, out: str | None, as_json: bool = False) -> None:
    """Scan a dataset, write the run and print what was found."""
    import sgoif
    from sgoif.scan.loop import scan

    where = out or default_out(settings.data)
    place = place_of(where)
    if find_info(place) is not None:
        raise SgoifError(f"'{where}' holds a run already; name another folder with --out, or none for a new one.")
    if settings.backbone is not None:
        find_here()
    text = settings_text(settings, sgoif.__version__).encode()
    is_written = False

    with progress_bars() as bars:

        def progress(stage: str, done: int, total: int) -> None:
            nonlocal is_written
            if not is_written:  # the work has begun: should it be killed, it can be repeated
                place.write(_SETTINGS_FILE, text)
                is_written = True
            bars(stage, done, total)

        scan(
            settings.data,
            out=where,
            features=settings.features,
            backbone=settings.backbone,
            verified=settings.verified,
            epochs=settings.epochs,
            seed=settings.seed,
            progress=progress,
        )
    place.write(_SETTINGS_FILE, text)
    run = open_run(where)
    found, table = summarise(run), run.worst(_SHOWN)
    if as_json:
        document = {"run": where, "settings": asdict(settings), "summary": found.document()}
        emit_json({"command": "scan", "format": 1, **document, "issues": named_rows(run, table)})
        return
    print_lines([*found.lines(), ""])
    show_rows(run, table)
    shown = shlex.quote(where)
    print_lines(
        [
            "",
            f"The run is in {where}. Next:",
            f"  sgoif report {shown} --out report.html",
            f"  sgoif issues {shown} --top 200 --csv review.csv",
            f"  sgoif classes {shown}",
            f"  sgoif duplicates {shown}",
            f"  sgoif holdout {shown} --size 300 --out verify.csv",
            f"  sgoif check {shown} --max-error-rate 2%",
        ]
    )


def default_out(data: str) -> str:
    """Name a new folder after the data and the time."""
    name = PurePosixPath(os.path.abspath(data).replace(os.sep, "/")).stem or "data"
    return f"sgoif-runs/{name}-{time.strftime('%Y%m%d-%H%M%S')}"


@contextmanager
def progress_bars() -> Iterator[Told]:
    """One bar per stage on standard error, with the time that is left."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left", style="dim"),
        TimeRemainingColumn(),
    )
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=stderr_console()) as bars:

        def tell(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=max(total, 1))
            bars.update(tasks[stage], completed=done, total=max(total, 1))

        yield tell
