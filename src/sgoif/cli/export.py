"""``sgoif export``: findings as files that other tools open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from sgoif.cli.options import Images, RankBy, RunPath, how_many, require
from sgoif.cli.output import clean, count, plain, print_lines
from sgoif.cli.report import open_images
from sgoif.cli.run import open_run
from sgoif.errors import SgoifError
from sgoif.files.tables import replacing, write_csv, write_parquet, write_text

if TYPE_CHECKING:
    from sgoif.run import Run

_ENDINGS = {"cleanlab": (".parquet", ".csv"), "label-studio": (".json",), "jsonl": (".jsonl",)}


def export(
    run: RunPath,
    to: Annotated[str, require("TOOL", "Write for this tool: cleanlab, label-studio, or jsonl for sequences.")],
    out: Annotated[
        str, require("FILE", "Write to this file: .csv or .parquet for cleanlab, .json for Label Studio, or .jsonl.")
    ],
    images: Images = None,
    top: Annotated[int, how_many("tasks or sequences")] = 500,
    rank_by: RankBy = None,
) -> None:
    """Write findings as files that other tools open."""
    if to not in _ENDINGS:
        raise SgoifError(
            f"--to is one of {', '.join(_ENDINGS)}, got {clean(to)!r}; FiftyOne and Hugging Face are reached from "
            "Python: sgoif.export."
        )
    if not out.endswith(_ENDINGS[to]):
        raise SgoifError(f"{clean(out)!r} must end in {' or '.join(_ENDINGS[to])} for {to}.")
    if rank_by is not None and to != "jsonl":
        raise SgoifError(f"--rank-by goes with sequences of a language model, --to jsonl, not with --to {to}.")
    from sgoif.run import load

    open_run(run, needs_examples=True, takes_sequences=to == "jsonl")
    opened = load(run)
    if to == "jsonl":
        _write_sequences(opened, out, top, by=rank_by or "suspicion")
    elif to == "cleanlab":
        _write_datalab(opened, out)
    else:
        _write_tasks(opened, run, out, images, top)


def describe_left_out(run: Run, *, has_unlabelled: bool = False) -> list[str]:
    """Say which examples of a run are not in a file that was written; some files have examples without a class."""
    from sgoif.review.manifest import count_left_out

    verified, unlabelled = count_left_out(run.sql)
    lines = [f"{count(verified, 'verified label')} left out: there is nothing to judge."] if verified else []
    if unlabelled and not has_unlabelled:
        lines.append(
            f"{count(unlabelled, 'example')} without a class (soft targets) left out: none was given to judge."
        )
    return lines


def _write_datalab(run: Run, out: str) -> None:
    from sgoif.export import datalab_issues

    table = datalab_issues(run)
    write_parquet(table, out) if out.endswith(".parquet") else write_csv(table, out)
    held = table["source"].to_pylist().count("holdout")
    said = f"{count(len(table), 'example')} written to {clean(out)}, as Datalab.get_issues('label') has them: "
    said += f"{count(len(table) - held)} of the training data, {count(held)} held out."
    print_lines([said, *describe_left_out(run)])


def _write_sequences(run: Run, out: str, top: int, *, by: str) -> None:
    from sgoif.export import sequence_rows

    if not run.has_sequences:
        raise SgoifError(
            "--to jsonl is there for sequences of a language model; write the labels of this run with `sgoif issues "
            "--csv FILE` or `--parquet FILE`, or for --to cleanlab."
        )
    written = 0
    with replacing(out) as file:
        for row in sequence_rows(run, by=by, top=top):
            file.write(json.dumps(plain(row), allow_nan=False).encode() + b"\n")
            written += 1
    written_of = f"{count(written)} of {count(run.num_examples, 'sequence')} written to {clean(out)}"
    lines = [f"{written_of}, {'most suspicious first' if by == 'suspicion' else f'ranked by {by}'}."]
    if written < run.num_examples:
        lines.append("--top 0 writes all of them.")
    print_lines(lines)


def _write_tasks(run: Run, url: str, out: str, images: str | None, top: int) -> None:
    from sgoif.export import label_studio_config, label_studio_kind, label_studio_tasks
    from sgoif.review.decisions import PICTURE

    tasks = list(label_studio_tasks(run, open_images(run, images), top=top))
    config = Path(out).with_suffix(".xml")
    write_text(out, json.dumps(tasks, indent=1))
    write_text(config, label_studio_config(run.class_names, label_studio_kind(tasks)))
    print_lines(
        [
            f"{count(len(tasks), 'task')} written to {clean(out)}, their labelling interface to {clean(config)}.",
            *describe_left_out(run),
            "Make a project with that interface, import the tasks, decide, export as JSON. Then:",
            f"  sgoif apply {clean(url)} export.json --out manifest.parquet",
        ]
    )
    if any(task["data"].get(PICTURE, "").startswith("file:") for task in tasks):
        print_lines(["Pictures have file:// addresses; Label Studio opens them once its local file serving is set up."])
