"""How the monitor is doing, and what a run found, in the experiment tracker that people look at anyway.

    tracker = TensorBoard(SummaryWriter("logs"))        # or WandB(wandb.init()), MLflow(mlflow)
    log_monitor(tracker, monitor)                       # in the loop, as often as you like: a few numbers
    log_run(tracker, monitor.close())                   # at the end: what was found

A tracker is often seen by more people than the data is. So pictures and texts are sent only where ``log_images=True``
says so, and ``hash_ids=True`` sends hashes in place of ids, which may be names of files or people. The user's own
writer, run or module is handed in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SgoifError
from sgoif.findings.label import class_name
from sgoif.findings.suspects import FLAGGED, rate_columns
from sgoif.sources.written import as_line, is_written

if TYPE_CHECKING:
    from sgoif.run import Run
    from sgoif.training.monitor import Monitor

__all__ = ["MLflow", "TensorBoard", "Tracker", "WandB", "log_monitor", "log_run"]

Rows = Sequence[Mapping[str, Any]]
Picture = NDArray[np.uint8]  # [height, width, 3]
_LONGEST = 200  # characters of a text in the table


class Tracker(Protocol):
    """Where numbers, a table and pictures go."""

    def numbers(self, values: Mapping[str, float], step: int) -> None:
        """Log numbers of one moment."""

    def table(self, name: str, rows: Rows, step: int) -> None:
        """Log a short table."""

    def pictures(self, name: str, pictures: Sequence[tuple[str, Picture]], step: int) -> None:
        """Log pictures with their captions."""


class TensorBoard:
    """A ``SummaryWriter``."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def numbers(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def table(self, name: str, rows: Rows, step: int) -> None:
        if not rows:
            return
        lines = [list(rows[0]), ["---"] * len(rows[0]), *([_cell(value) for value in row.values()] for row in rows)]
        self._writer.add_text(name, "\n".join(f"| {' | '.join(line)} |" for line in lines), step)

    def pictures(self, name: str, pictures: Sequence[tuple[str, Picture]], step: int) -> None:
        for place, (caption, picture) in enumerate(pictures):
            self._writer.add_image(f"{name}/{place} {caption}", picture, step, dataformats="HWC")


class WandB:
    """A run of Weights & Biases, as ``wandb.init`` gives it."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def numbers(self, values: Mapping[str, float], step: int) -> None:
        # not their `step`, which must never fall behind what the user logs
        self._run.log({**values, "sgoif/step": step})

    def table(self, name: str, rows: Rows, step: int) -> None:
        import wandb

        if rows:
            data = [[_cell(value) for value in row.values()] for row in rows]
            self._run.log({name: wandb.Table(columns=list(rows[0]), data=data), "sgoif/step": step})

    def pictures(self, name: str, pictures: Sequence[tuple[str, Picture]], step: int) -> None:
        import wandb

        images = [wandb.Image(picture, caption=caption) for caption, picture in pictures]
        self._run.log({name: images, "sgoif/step": step})


class MLflow:
    """The module ``mlflow`` with its active run."""

    def __init__(self, mlflow: Any) -> None:
        self._mlflow = mlflow

    def numbers(self, values: Mapping[str, float], step: int) -> None:
        self._mlflow.log_metrics(dict(values), step=step)

    def table(self, name: str, rows: Rows, step: int) -> None:
        columns = {key: [_cell(row[key]) for row in rows] for key in (rows[0] if rows else ())}
        self._mlflow.log_dict(columns, f"{name}.json")

    def pictures(self, name: str, pictures: Sequence[tuple[str, Picture]], step: int) -> None:
        for place, (_, picture) in enumerate(pictures):
            self._mlflow.log_image(picture, artifact_file=f"{name}/{place:03d}.png")


def log_monitor(tracker: Tracker, monitor: Monitor) -> None:
    """Log how a monitor is doing: residual and confidence of its anchors, its cost, what it judged, its faults.

    Waits for the device, so call it as rarely as you log. What is not known yet is left out.
    """
    now = monitor.reading
    values = {
        "residual": now.residual,
        "confidence": now.confidence,
        "overhead": now.overhead,
        "judged": now.judged,
        "faults": float(sum(monitor.faults.values())),
        "is_on": float(monitor.is_on),
    }
    tracker.numbers({f"sgoif/{key}": value for key, value in values.items() if np.isfinite(value)}, now.step)


def log_run(
    tracker: Tracker,
    run: Run,
    *,
    top: int = 20,
    images: Any = None,
    log_images: bool = False,
    hash_ids: bool = False,
) -> None:
    """Log what a run found: expected and flagged errors, and its most suspicious labels as a table.

    Args:
        tracker: where to.
        run: what ``monitor.close()`` gave.
        top: how many labels.
        images: where pictures are, as in :meth:`Run.report`.
        log_images: send them.
        hash_ids: send hashes of ids in place of ids.
    """
    if log_images and images is None:
        raise SgoifError("log_images=True needs images=: a folder, a URL, a dataset, or a function of an id.")
    issues = run.label_issues(top=top).to_pylist()
    step = int(run.info.get("counters", {}).get("steps", 0))
    numbers = {"examples": float(run.num_examples)}
    if run.is_calibrated:
        p = np.nan_to_num(rate_columns(run.sql)["p_mislabeled"])
        numbers |= {"expected_errors": float(p.sum()), "label_issues": float((p >= FLAGGED).sum())}
    tracker.numbers({f"sgoif/{key}": value for key, value in numbers.items()}, step)
    rows = [_row(item, run.class_names, hash_ids) for item in issues]
    values = _read_examples(issues, images) if log_images else []
    if any(is_written(value) for value in values):  # texts and rows of a table stand beside their ids
        for row, value in zip(rows, values, strict=True):
            row["example"] = as_line(value)[:_LONGEST] if is_written(value) else ""
    tracker.table("sgoif/suspects", rows, step)
    if log_images:
        tracker.pictures("sgoif/suspects", _pictures(issues, values, run.class_names), step)


def _row(item: Mapping[str, Any], names: Sequence[str], hash_ids: bool) -> dict[str, Any]:
    given, suggested = (class_name(item[key], names) for key in ("given_label", "suggested_label"))
    id = hashlib.blake2b(str(item["id"]).encode(), digest_size=8).hexdigest() if hash_ids else item["id"]
    shown = {"id": id, "given": given, "suggested": suggested}
    return shown | {key: item[key] for key in ("p_mislabeled", "harm", "confidence", "why") if key in item}


def _read_examples(issues: Rows, images: Any) -> list[Any]:
    from sgoif.sources import find_pictures

    return list(find_pictures(images).read([item["id"] for item in issues]))


def _pictures(issues: Rows, values: Sequence[Any], names: Sequence[str]) -> list[tuple[str, Picture]]:
    from sgoif.pictures import displayed

    shown = []
    for item, value in zip(issues, values, strict=True):
        if value is not None and not is_written(value):
            given, suggested = (class_name(item[key], names) for key in ("given_label", "suggested_label"))
            shown.append((f"{given} -> {suggested}", np.asarray(displayed(value).convert("RGB"))))
    return shown


def _cell(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value).replace("|", "/")
