"""``sgoif export``: findings as files that other tools open."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from sgoif.cli.output import clean, count, print_lines
from sgoif.cli.report import find_images
from sgoif.cli.run import need_examples, open_run
from sgoif.errors import SgoifError
from sgoif.export import datalab_issues, label_studio_config, label_studio_tasks
from sgoif.files.tables import write_csv, write_parquet, write_text
from sgoif.review.decisions import PICTURE
from sgoif.review.manifest import count_left_out
from sgoif.run import load

__all__ = ["KINDS", "left_out", "show_export"]

KINDS = ("cleanlab", "label-studio")
_ENDINGS = {"cleanlab": (".parquet", ".csv"), "label-studio": (".json",)}


def show_export(url: str, *, to: str, out: str, images: str | None, top: int | None) -> None:
    """Write a run's findings in another tool's shape."""
    if to not in KINDS:
        raise SgoifError(
            f"--to is one of {', '.join(KINDS)}, got {clean(to)!r}; FiftyOne and Hugging Face are reached from Python: "
            "sgoif.export."
        )
    endings = _ENDINGS[to]
    if not out.endswith(endings):
        raise SgoifError(f"{clean(out)!r} must end in {' or '.join(endings)} for {to}.")
    need_examples(open_run(url))
    if to == "cleanlab":
        _write_datalab(url, out)
    else:
        _write_tasks(url, out, images, top)


def left_out(sql: Callable[..., pa.Table], *, has_unlabelled: bool = False) -> list[str]:
    """Say which examples of a run are not in a file that was written.

    Args:
        sql: answers a SELECT over the run's tables.
        has_unlabelled: whether examples without a class are in the file.
    """
    verified, unlabelled = count_left_out(sql)
    lines = [f"{count(verified, 'verified hold-out label')} left out: there is nothing to judge."] if verified else []
    if unlabelled and not has_unlabelled:
        lines.append(
            f"{count(unlabelled, 'example')} without a class (soft targets) left out: none was given to judge."
        )
    return lines


def _write_datalab(url: str, out: str) -> None:
    run = load(url)
    table = datalab_issues(run)
    if out.endswith(".parquet"):
        write_parquet(table, out)
    else:
        write_csv(table, out)
    held = int(pc.sum(pc.equal(table["source"], "holdout")).as_py() or 0)
    print_lines(
        [
            f"{count(len(table), 'example')} written to {clean(out)}, as Datalab.get_issues('label') has them: "
            f"{count(len(table) - held)} of the training data, {count(held)} held out.",
            *left_out(run.sql),
        ]
    )


def _write_tasks(url: str, out: str, images: str | None, top: int | None) -> None:
    run = load(url)
    tasks = list(label_studio_tasks(run, find_images(run, images), top=top))
    config = Path(out).with_suffix(".xml")
    write_text(out, json.dumps(tasks, indent=1))
    write_text(config, label_studio_config(run.class_names))
    print_lines(
        [
            f"{count(len(tasks), 'task')} written to {clean(out)}, their labelling interface to {clean(config)}.",
            *left_out(run.sql),
            "Make a project with that interface, import the tasks, decide, export as JSON. Then:",
            f"  sgoif apply {clean(url)} export.json --out manifest.parquet",
        ]
    )
    if any(task["data"][PICTURE].startswith("file:") for task in tasks):
        print_lines(["Pictures have file:// addresses; Label Studio opens them once its local file serving is set up."])
