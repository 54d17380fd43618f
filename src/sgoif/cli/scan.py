"""``sgoif scan``: a folder of pictures in, a run and its worst labels out."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from sgoif.cli.issues import show_rows
from sgoif.cli.output import clean, count, emit_json, print_lines, shorten, stderr_console
from sgoif.cli.run import Run, open_run
from sgoif.cli.settings import ScanSettings, settings_text
from sgoif.errors import SgoifError
from sgoif.files.locations import place_of
from sgoif.findings.suspects import columns_of
from sgoif.store.info import find_info

if TYPE_CHECKING:
    from rich.progress import TaskID

__all__ = ["default_out", "describe_left_out", "progress_bars", "show_scan"]

Told = Callable[[str, int, int], None]

_SHOWN = 20
_SETTINGS_FILE = "scan.yaml"
_LEFT_OUT = (
    *("without_label", "unreadable", "unreadable_pictures", "not_finite"),
    *("outliers", "outlier_ids", "clamped_values", "feature_order"),
)
_NAMED = 3  # ids in a line
_REASONS = 5  # lines about examples that were not judged
_EVERY_S = 10.0  # between lines of progress where there is no terminal


def show_scan(settings: ScanSettings, *, out: str | None, as_json: bool = False) -> None:
    """Scan a dataset, write the run and print what was found."""
    import sgoif
    from sgoif.scan.loop import scan

    where = out or default_out(settings.data)
    place = place_of(where)
    if find_info(place) is not None:
        raise SgoifError(f"'{where}' holds a run already; name another folder with --out, or none for a new one.")
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
            feature_ids=settings.feature_ids,
            backbone=settings.backbone,
            verified=settings.verified,
            epochs=settings.epochs,
            seed=settings.seed,
            progress=progress,
        )
    place.write(_SETTINGS_FILE, text)
    run = open_run(where)
    found, table = run.summary(), run.label_issues(top=_SHOWN)
    if as_json:
        left_out = {name: run.info.get(name) for name in _LEFT_OUT}
        document = {"run": where, "settings": asdict(settings), "summary": found.document(), "left_out": left_out}
        emit_json({"command": "scan", "format": 1, **document, "issues": table.to_pylist()})
        return
    print_lines([*found.lines(), *describe_left_out(run), ""])
    show_rows(run, table)
    shown = shlex.quote(where)
    images = "" if run.info.get("has_pictures") is False else " --images run"
    print_lines(
        [
            "",
            f"The run is in {where}. Next:",
            f"  sgoif report {shown}{images} --out report.html",
            f"  sgoif issues {shown} --top 200 --csv review.csv",
            f"  sgoif classes {shown}",
            f"  sgoif duplicates {shown}",
            f"  sgoif verify {shown} --page check.html{images}",
            f"  sgoif check {shown} --max-error-rate 2%",
        ]
    )


def describe_left_out(run: Run) -> list[str]:
    """Say which examples a scan could not read or not judge, and what it took for granted."""
    from sgoif.scan.loop import UNREADABLE_FILE

    facts, lines = run.info, []
    order = facts.get("feature_order")
    if order:
        lines.append(f"Embeddings were given to examples {clean(order)}.")
    if facts.get("path") == "features" and facts.get("has_pictures") is not False:
        lines.append(
            "Pictures were not opened: with --features, broken ones are judged by their embedding like the rest."
        )
    number = _number(facts, "unreadable")
    if number:
        ids = [item.get("id") for item in facts.get("unreadable_pictures") or () if isinstance(item, dict)]
        listed = f"listed with the reasons in {clean(run.files.url.rstrip('/'))}/{UNREADABLE_FILE}"
        lines.append(f"{count(number, 'picture')} could not be read: {_some(ids, number)}; {listed}.")
    if _number(facts, "without_label"):
        lines.append(f"{count(_number(facts, 'without_label'), 'example')} without a label left out.")
    number = _number(facts, "outliers")
    if number:
        lines.append(
            f"{count(number, 'embedding')} far outside all others, clamped at 10 standard deviations: "
            f"{_some(facts.get('outlier_ids'), number)}. Check what made them."
        )
    return [*lines, *_unjudged(run)]


def _unjudged(run: Run) -> list[str]:
    if "no_p_reason" not in columns_of(run.sql, "examples") or not run.is_calibrated:
        return []
    query = "select no_p_reason as reason, count(*) as n, list(id order by id)[:3] as ids from examples "
    query += "where p_mislabeled is null and no_p_reason is not null group by 1 order by n desc, reason"
    rows = run.sql(query).to_pylist()
    lines = [
        f"Not judged: {count(row['n'], 'example')} ({_some(row['ids'], row['n'])}): {clean(row['reason'])}."
        for row in rows[:_REASONS]
    ]
    if len(rows) > _REASONS:
        rest = sum(row["n"] for row in rows[_REASONS:])
        lines.append(f"Not judged for other reasons: {count(rest, 'example')}; see the column no_p_reason.")
    return lines


def _number(facts: Mapping[str, Any], name: str) -> int:
    value = facts.get(name)
    return value if isinstance(value, int) else 0


def _some(ids: Any, number: int) -> str:
    shown = [shorten(id, 80) for id in ids][:_NAMED] if isinstance(ids, list) else []
    return ", ".join(shown) + (", …" if number > len(shown) else "")


def default_out(data: str) -> str:
    """Name a new folder after the data and the time."""
    name = PurePosixPath(os.path.abspath(data).replace(os.sep, "/")).stem or "data"
    return f"sgoif-runs/{name}-{time.strftime('%Y%m%d-%H%M%S')}"


@contextmanager
def progress_bars() -> Iterator[Told]:
    """One bar per stage on standard error, with the time that is left; plain lines where that is no terminal."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    screen = stderr_console()
    if not screen.is_terminal:
        yield _progress_lines()
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left", style="dim"),
        TimeRemainingColumn(),
    )
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=screen) as bars:

        def tell(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=max(total, 1))
            bars.update(tasks[stage], completed=done, total=max(total, 1))

        yield tell


def _progress_lines() -> Told:
    """Print a line when a stage begins and ends, and every ten seconds between."""
    start = time.monotonic()
    last: dict[str, float] = {}

    def tell(stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if stage in last and done < total and now - last[stage] < _EVERY_S:
            return
        last[stage] = now
        line = f"{stage}: {count(done)} of {count(total)}, {now - start:.0f} s"
        print(line, file=sys.stderr, flush=True)

    return tell
