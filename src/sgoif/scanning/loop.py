"""The scan: finds label errors in data of any kind, without a training loop of one's own.

Labels are judged by heads on embeddings: given, made by a frozen backbone, or made of texts and columns. It takes
minutes for hundreds of thousands of examples. Nothing but these heads is trained; what examples do to each other is
asked of a model that was watched or audited.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from sgoif.api import make_sink
from sgoif.errors import SgoifError
from sgoif.files.locations import place_of
from sgoif.files.tables import encode_csv
from sgoif.rng import preserve_rng
from sgoif.run import Run
from sgoif.scanning import Progress, no_progress
from sgoif.scanning.annotators import audit_annotators
from sgoif.scanning.examples import ScanExamples, choose_examples, take_labelled
from sgoif.scanning.frozen import audit_embeddings
from sgoif.scanning.inputs import Means, make_inputs
from sgoif.scanning.issues import finder_of
from sgoif.scanning.scan_run import ScanRun
from sgoif.scanning.values import audit_values
from sgoif.sources.columns import ColumnNames
from sgoif.sources.labelled import Source, TableSource, open_source
from sgoif.sources.sql import run_query

__all__ = ["UNREADABLE_FILE", "scan"]

UNREADABLE_FILE = "unreadable.csv"  # of a run: pictures that could not be read, with the reason

Task = Literal["classification", "regression"]
_NAMED = 20  # pictures that run.json names; the file names all of them


@preserve_rng()  # a backbone may draw from it
def scan(
    data: Any = None,
    *,
    label: str | Sequence[str] | None = None,
    text: str | None = None,
    image: str | None = None,
    id: str | None = None,
    group: str | None = None,
    split: str | None = None,
    sql: str | None = None,
    features: Any = None,
    feature_ids: str | Path | None = None,
    backbone: str | None = None,
    weights: str | Path | None = None,
    device: str = "cpu",
    task: Task = "classification",
    verified: str | Path | None = None,
    out: str | None = None,
    seed: int = 0,
    progress: Progress = no_progress,
) -> Run:
    """Find label errors and other issues of a dataset: pictures, texts, rows of a table, or embeddings of anything.

    Args:
        data: a folder of class folders; a Parquet, Arrow, CSV or JSON-lines file, or a folder of them; tar shards of
            WebDataset; a dataset saved by Hugging Face; or in memory a DataFrame, a ``datasets.Dataset``, an Arrow
            table or a dictionary of columns.
        label: the column of the label; several columns for labels by several annotators. Like the columns below it is
            found by its name where it is not given.
        text: the column of the text to judge.
        image: the column of the picture to judge: encoded, or a path below the table's folder.
        id: the column of ids; row numbers where there is none.
        group: a column of groups (camera, vendor, patient) among which errors are compared.
        split: a column that names the split (train, test) of each row, for leakage between them.
        sql: a SELECT that gives the table, answered by DuckDB; ``data`` is then a database file or left out.
        features: embeddings: an array with one row per example in the order of the data (sorted paths of a folder,
            rows of a table); the name of a column of lists; or a file: ``.npy`` in that order, ``.npz``, Parquet or
            CSV by id.
        feature_ids: a text file with the id of each row of a ``.npy`` file.
        backbone: a frozen model that makes embeddings: ``timm:NAME``, ``torchvision:NAME``, ``open_clip:NAME``,
            ``hf:NAME``, ``sentence:NAME``, or ``module:factory``; see docs/howto/backbones.md.
        weights: a file of the backbone's weights, for machines without network.
        device: where the backbone runs.
        task: ``"classification"``, or ``"regression"`` for labels that are values.
        verified: ``id,label`` of examples whose labels a person has checked: these are taken for the truth, are not
            doubted, and count in no total.
        out: where to write the run; None keeps it in memory.
        seed: of everything random.
        progress: told what is done, how much of it and how much there is.

    Raises:
        SgoifError: The data cannot be read, or too little of it can be judged.
    """
    if task not in get_args(Task):
        raise SgoifError(f"task must be one of {', '.join(get_args(Task))}, got {task!r}.")
    names = ColumnNames(label, text, image, id, group, split)
    options = {"has_features": features is not None, "is_regression": task == "regression"}
    if sql is None and data is None:
        raise SgoifError("name the data to scan: a folder, a file or a table.")
    source = open_source(data if sql is None else run_query(sql, data), names, **options)
    _refuse_contradictions(source, task, verified, sql)
    has_other_labels = isinstance(source, TableSource) and (source.votes is not None or source.values is not None)
    chosen = take_labelled(source) if has_other_labels else choose_examples(source, verified)
    inputs = make_inputs(source, chosen, Means(features, feature_ids, backbone, weights, device), out, progress)
    found = inputs.found
    facts: dict[str, Any] = {
        "task": task,
        "class_names": list(source.class_names),
        "examples_are": source.kind if _can_be_shown(source) else None,
        "has_pictures": source.kind == "picture",
        "path": inputs.path,
        "notes": [*source.notes, *inputs.notes],
        "seed": seed,
    }
    if inputs.order is not None:
        facts["feature_order"] = inputs.order
    facts |= _keep_counts(source, found, out)
    sink, issues = make_sink(out, "none"), None if has_other_labels else finder_of(source, found, seed, progress)
    run = ScanRun(sink, facts, found.sketches, progress, issues)
    if isinstance(source, TableSource) and source.values is not None:
        return audit_values(inputs.rows, source.values[found.positions], found.ids, seed=seed, run=run)
    if isinstance(source, TableSource) and source.votes is not None:
        return audit_annotators(
            inputs.rows,
            source.votes[found.positions],
            found.ids,
            class_names=source.class_names,
            annotator_names=source.roles.labels,
            seed=seed,
            run=run,
        )
    num_classes = len(source.class_names)
    return audit_embeddings(
        inputs.rows, found.labels, found.ids, num_classes=num_classes, verified=found.verified, run=run
    )


def _can_be_shown(source: Source) -> bool:
    """Whether a page has something to show of the examples."""
    return not isinstance(source, TableSource) or source.kind != "row" or bool(source.roles.others)


def _refuse_contradictions(source: Source, task: str, verified: str | Path | None, sql: str | None) -> None:
    if not isinstance(source, TableSource):
        return
    if verified is not None and (source.votes is not None or task == "regression"):
        raise SgoifError("verified labels are for classes with one label each.")
    if sql is not None and source.roles.id is None:
        raise SgoifError("the rows of a query have no order of their own: name a column of ids with --id COLUMN.")


def _keep_counts(source: Source, found: ScanExamples, out: str | None) -> dict[str, Any]:
    """Facts about what was left out; pictures that could not be read are listed in a file of the run, with reasons."""
    if found.unreadable and out is not None:
        place_of(out).write(UNREADABLE_FILE, encode_csv(["id", "reason"], found.unreadable))
    return {
        "without_label": int((source.labels < 0).sum()),
        "unreadable": len(found.unreadable),
        "unreadable_pictures": [{"id": id, "reason": reason} for id, reason in found.unreadable[:_NAMED]],
    }
