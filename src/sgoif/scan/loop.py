"""The scan: finds label errors in a folder of pictures, or in embeddings, without a training loop of one's own.

Three paths. With ``features`` (embeddings from a file) or a ``backbone`` (a frozen model that makes them), linear heads
are trained on them: minutes for hundreds of thousands of examples, and the best findings by far. Without, a small
network is trained from scratch: good for small pictures. Small sets are cross-fitted, large ones watched as they train.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from sgoif.api import make_sink, watch
from sgoif.files.locations import place_of
from sgoif.files.tables import encode_csv
from sgoif.rng import preserve_rng
from sgoif.run import Run
from sgoif.scan import Progress, no_progress
from sgoif.scan.crossfit import LabelledSet, ScanRun, cross_fitted_audit
from sgoif.scan.examples import ScanExamples, choose_examples, read_embeddings, read_pictures
from sgoif.scan.features import order_of
from sgoif.scan.frozen import audit_embeddings
from sgoif.scan.holdout import find_reasons, split_unjudged
from sgoif.scan.network import Recipe, SmallResNet, as_inputs, forward_of, make_optimizer, train
from sgoif.sources.labelled import Source, open_source
from sgoif.training.datasets import with_ids
from sgoif.training.monitor import Monitor

__all__ = ["UNREADABLE_FILE", "scan"]

UNREADABLE_FILE = "unreadable.csv"  # of a run: pictures that could not be read, with the reason

_CROSS_FITTED = 12_000  # examples up to which a network is trained once per fold
_FOLDS = 4
_TABLE_HINT = (
    "For a table of numbers pass its columns as features (--features): .parquet or .csv with a column `id`, or .npy."
)
_NAMED = 20  # pictures that run.json names; the file names all of them


@preserve_rng()  # it seeds the global generator for its own networks
def scan(
    data: str | Path,
    *,
    out: str | None = None,
    features: str | Path | None = None,
    feature_ids: str | Path | None = None,
    backbone: str | None = None,
    verified: str | Path | None = None,
    epochs: int | None = None,
    seed: int = 0,
    progress: Progress = no_progress,
) -> Run:
    """Find label errors.

    Args:
        data: a folder of class folders, a Parquet file with encoded pictures, or a folder saved by Hugging Face. Beside
            ``features`` a table, Parquet or CSV, needs only labels.
        out: where to write the run; None keeps it in memory.
        features: embeddings; ``.npy`` with one row per example in the order of the data, which is that of sorted paths
            in a folder and of rows in tables; or by id, see :func:`sgoif.scan.features.read_features`.
        feature_ids: a text file with the id of each row of a ``.npy`` file.
        backbone: ``module:factory``, called without arguments, of a frozen model from pictures to embeddings; see
            :func:`sgoif.scan.embeddings.load_backbone`.
        verified: ``id,label`` of examples whose labels a person has checked; they join the hold-out.
        epochs: of the training; chosen by the path if left out.
        seed: of everything random.
        progress: told what is done, how much of it and how much there is.
    """
    source = open_source(data, has_features=features is not None)
    found = choose_examples(source, verified)
    facts: dict[str, Any] = {
        "kind": "scan",
        "class_names": list(source.class_names),
        "has_pictures": source.kind == "picture",
        "seed": seed,
    }
    num_classes, sink = len(source.class_names), make_sink(out, "all")
    if features is not None or backbone is not None:
        rows, found = read_embeddings(source, found, features, feature_ids, backbone, out, progress)
        facts |= {"path": "features" if features is not None else "backbone"} | _keep_counts(source, found, out)
        if features is not None:
            facts["feature_order"] = order_of(features, feature_ids, source.ids)
        return audit_embeddings(
            rows,
            found.labels,
            found.ids,
            found.held,
            num_classes=num_classes,
            verified=found.verified,
            epochs=epochs,
            seed=seed,
            run=ScanRun(sink, facts, found.sketches, progress=progress),
        )
    pictures, found = read_pictures(source, found, progress)
    facts |= {"path": "scratch", "side": int(pictures.shape[1])} | _keep_counts(source, found, out)
    reasons = find_reasons(found.labels, num_classes, source.class_names)
    kept, unjudged = split_unjudged(found.ids, found.labels, reasons)
    pictures, found = pictures[kept], found.only(kept)
    targets = torch.from_numpy(found.labels)
    recipe = Recipe(epochs=epochs or _epochs_for(len(found.ids)))
    if len(found.ids) > _CROSS_FITTED:
        run = ScanRun(None, facts, found.sketches, unjudged, progress)
        return _watch_training(pictures, targets, found, recipe, out, run, seed)
    after_epoch = _count_epochs(progress, _FOLDS * recipe.epochs)

    def train_one(mine: NDArray[np.int64]) -> Any:
        torch.manual_seed(seed)
        model = SmallResNet(num_classes=num_classes).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        _, step = make_optimizer(model, recipe, len(mine))
        forward = forward_of(model)
        train(forward, step, pictures, targets, mine, recipe, seed=seed, after_epoch=after_epoch)
        model.eval()
        return model, forward

    def tell(stage: str, done: int, total: int) -> None:
        if stage != "training":  # which is told epoch by epoch
            progress(stage, done, total)

    return cross_fitted_audit(
        train_one,
        lambda mine: as_inputs(pictures[mine]),
        LabelledSet(found.ids, targets, found.held, num_classes, found.verified),
        ScanRun(sink, facts, found.sketches, unjudged, tell),
        num_folds=_FOLDS,
        seed=seed,
    )


def _keep_counts(source: Source, found: ScanExamples, out: str | None) -> dict[str, Any]:
    """Facts about what was left out; pictures that could not be read are listed in a file of the run, with reasons."""
    if found.unreadable and out is not None:
        place_of(out).write(UNREADABLE_FILE, encode_csv(["id", "reason"], found.unreadable))
    return {
        "without_label": int((source.labels < 0).sum()),
        "unreadable": len(found.unreadable),
        "unreadable_pictures": [{"id": id, "reason": reason} for id, reason in found.unreadable[:_NAMED]],
        "num_held_out": int(found.held.sum()),
    }


def _count_epochs(progress: Progress, total: int) -> Callable[[], None]:
    """What to call at the end of each epoch."""
    done = count(1)
    return lambda: progress("training the network", next(done), total)


def _epochs_for(num_examples: int) -> int:
    """More passes over fewer examples: about 100,000 visits, between 10 and 25 epochs."""
    return int(np.clip(100_000 // max(num_examples, 1), 10, 25))


def _watch_training(
    pictures: NDArray[np.uint8],
    targets: torch.Tensor,
    found: ScanExamples,
    recipe: Recipe,
    out: str | None,
    about: ScanRun,
    seed: int,
) -> Run:
    """Train once, watched: for sets that are too large to be trained on several times."""
    rows, kept = np.flatnonzero(~found.held), np.flatnonzero(found.held)
    torch.manual_seed(seed)
    names = about.facts["class_names"]
    model = SmallResNet(num_classes=len(names)).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer, step = make_optimizer(model, recipe, len(rows))
    forward = forward_of(model)
    monitor = watch(
        model,
        optimizer,
        anchors=with_ids(TensorDataset(as_inputs(pictures[kept]), targets[kept]), list(found.ids[kept])),
        train_size=len(rows),
        out=out,
        class_names=names,
        trusted=found.is_trusted,
        seed=seed,
    )
    if isinstance(monitor, Monitor) and monitor.ledger is not None:
        monitor.ledger.verified = found.verified[kept]
    model.train()
    train(
        forward,
        step,
        pictures,
        targets,
        rows,
        recipe,
        seed=seed,
        around=lambda batch: monitor.step(found.ids[batch], targets[batch]),
        after_epoch=_count_epochs(about.progress, recipe.epochs),
    )
    monitor.facts.update({**about.facts, "num_verified": int(found.verified.sum())})
    monitor.sketches, monitor.unjudged = about.sketches, about.unjudged
    run: Run = monitor.close()
    return run
