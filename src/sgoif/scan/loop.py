"""The scan: finds label errors in a folder of pictures, or in embeddings, without a training loop of one's own.

Three paths. With ``features`` (embeddings from a file) or a ``backbone`` (a frozen model that makes them), linear heads
are trained on them: minutes for hundreds of thousands of examples, and the best findings by far. Without, a small
network is trained from scratch: good for small pictures. Small sets are cross-fitted, large ones watched as they train.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from sgoif.api import make_sink, watch
from sgoif.errors import SgoifError
from sgoif.run import Run
from sgoif.scan.crossfit import Progress, cross_fitted_audit, no_progress
from sgoif.scan.embeddings import embed, load_backbone, read_features
from sgoif.scan.heads import standardised, train_head
from sgoif.scan.holdout import choose_holdout, read_verified
from sgoif.scan.network import SmallResNet
from sgoif.scan.pictures import PictureError, decode, square
from sgoif.scan.recipe import Recipe, as_inputs, forward_of, make_optimizer, train
from sgoif.scan.sources import Source, open_source
from sgoif.training.datasets import with_ids

__all__ = ["scan"]

_CROSS_FITTED = 12_000  # examples up to which a network is trained once per fold
_SMALL = 40  # pixels; larger pictures are scaled to twice this side's network
_FOLDS = 4


@dataclass(frozen=True, slots=True)
class _Data:
    """What is scanned: examples that have a label, and which of them are held out."""

    ids: NDArray[Any]
    labels: NDArray[np.int64]  # verified where a person did
    positions: NDArray[np.int64]  # in the source
    held: NDArray[np.bool_]
    is_trusted: bool

    def only(self, kept: NDArray[np.bool_]) -> _Data:
        return _Data(self.ids[kept], self.labels[kept], self.positions[kept], self.held[kept], self.is_trusted)


def scan(
    data: str | Path,
    *,
    out: str | None = None,
    features: str | Path | None = None,
    backbone: str | None = None,
    verified: str | Path | None = None,
    epochs: int | None = None,
    seed: int = 0,
    progress: Progress = no_progress,
) -> Run:
    """Find label errors.

    Args:
        data: a folder of class folders, a Parquet file with encoded pictures, or a folder saved by Hugging Face.
        out: where to write the run; None keeps it in memory.
        features: embeddings, ``.npy`` in the order of the data or ``.parquet`` with an ``id`` column.
        backbone: ``module:factory`` of a frozen model from pictures to embeddings.
        verified: ``id,label`` of examples whose labels a person has checked; they become the hold-out.
        epochs: of the training; chosen by the path if left out.
        seed: of everything random.
        progress: told what is done, how much of it and how much there is.
    """
    source = open_source(data)
    found = _prepare(source, verified)
    facts: dict[str, Any] = {
        "kind": "scan",
        "class_names": list(source.class_names),
        "seed": seed,
        "without_label": int((source.labels < 0).sum()),
        "num_held_out": int(found.held.sum()),
    }
    num_classes, sink = len(source.class_names), make_sink(out, "all")
    shared: dict[str, Any] = {"num_classes": num_classes, "num_folds": _FOLDS, "seed": seed, "progress": progress}
    if features is not None or backbone is not None:
        rows, found, facts["path"] = _features(source, found, features, backbone, out, progress)
        facts["unreadable"] = len(source.ids) - facts["without_label"] - len(found.ids)
        inputs, targets = standardised(rows, ~found.held), torch.from_numpy(found.labels)
        return cross_fitted_audit(
            lambda mine: train_head(inputs, targets, mine, num_classes, epochs=epochs or 6, seed=seed),
            lambda mine: inputs[mine],
            targets,
            found.ids,
            found.held,
            trusted=found.is_trusted,
            sink=sink,
            facts=facts,
            **shared,
        )
    pictures, found = _pictures(source, found, progress)
    facts |= {"path": "scratch", "side": int(pictures.shape[1])}
    facts["unreadable"] = len(source.ids) - facts["without_label"] - len(found.ids)
    targets = torch.from_numpy(found.labels)
    recipe = Recipe(epochs=epochs or _epochs_for(len(found.ids)))
    if len(found.ids) > _CROSS_FITTED:
        return _watched(pictures, targets, found, recipe, num_classes, out, facts, seed, progress)
    done = 0
    total = _FOLDS * recipe.epochs

    def after_epoch() -> None:
        nonlocal done
        done += 1
        progress("training the network", done, total)

    def train_one(mine: NDArray[np.int64]) -> Any:
        torch.manual_seed(seed)
        model = SmallResNet(num_classes=num_classes).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer, step_schedule = make_optimizer(model, recipe, len(mine))
        forward = forward_of(model)
        train(forward, optimizer, step_schedule, pictures, targets, mine, recipe, seed=seed, after_epoch=after_epoch)
        return model, forward

    return cross_fitted_audit(
        train_one,
        lambda mine: as_inputs(pictures[mine]),
        targets,
        found.ids,
        found.held,
        trusted=found.is_trusted,
        sink=sink,
        facts=facts,
        **(shared | {"progress": lambda stage, d, t: None if stage == "training" else progress(stage, d, t)}),
    )


def _prepare(source: Source, verified: str | Path | None) -> _Data:
    positions = np.flatnonzero(source.labels >= 0)
    ids, labels = np.asarray(source.ids)[positions], source.labels[positions].copy()
    num_classes = len(source.class_names)
    counts = np.bincount(labels, minlength=num_classes)
    if (counts >= 4).sum() < 2:
        raise SgoifError(f"a scan needs two classes with a few examples each, got {counts.tolist()}.")
    if verified is None:
        return _Data(ids, labels, positions, choose_holdout(ids, labels, num_classes), False)
    checked = read_verified(verified, list(ids), source.class_names)
    if len(checked) < 2 * num_classes:
        raise SgoifError(
            f"'{verified}' verifies {len(checked)} of these examples; needed are a few of each of {num_classes} "
            "classes. Without the file a hold-out is chosen and cleans itself."
        )
    held = np.zeros(len(ids), bool)
    held[list(checked)] = True
    labels[list(checked)] = list(checked.values())
    return _Data(ids, labels, positions, held, True)


def _features(
    source: Source,
    found: _Data,
    features: str | Path | None,
    backbone: str | None,
    out: str | None,
    progress: Progress,
) -> tuple[NDArray[np.float32], _Data, str]:
    if features is not None:
        rows = read_features(features, source.ids if str(features).endswith(".npy") else list(found.ids))
        return (rows[found.positions] if str(features).endswith(".npy") else rows), found, "features"
    assert backbone is not None
    cache = Path(out).parent / ".sgoif-cache" if out is not None and "://" not in out else None
    made = load_backbone(backbone)
    rows, readable = embed(source, found.positions, made, cache=cache, key=backbone, progress=progress)
    return rows[readable], found.only(readable), "backbone"


def _pictures(source: Source, found: _Data, progress: Progress) -> tuple[NDArray[np.uint8], _Data]:
    """Decode all pictures, small: 32 pixels where they are about that size, else 64."""
    first = [_size(item) for item in source.encoded(found.positions[:64])]
    sizes = [size for size in first if size]
    side = 32 if sizes and np.median(sizes) <= _SMALL else 64
    kept = np.zeros(len(found.ids), bool)
    pictures = np.zeros((len(found.ids), side, side, 3), np.uint8)
    for number, item in enumerate(source.encoded(found.positions)):
        try:
            pictures[number] = square(decode(item), side)
            kept[number] = True
        except PictureError:
            continue
        finally:
            if number % 256 == 255 or number + 1 == len(kept):
                progress("reading pictures", number + 1, len(kept))
    if not kept.any():
        raise SgoifError(f"none of {len(kept)} pictures could be read.")
    return pictures[kept], found.only(kept)


def _size(item: bytes | Path) -> int:
    try:
        return min(decode(item).size)
    except PictureError:
        return 0


def _epochs_for(num_examples: int) -> int:
    """More passes over fewer examples: about 100,000 visits, between 10 and 25 epochs."""
    return int(np.clip(100_000 // max(num_examples, 1), 10, 25))


def _watched(
    pictures: NDArray[np.uint8],
    targets: torch.Tensor,
    found: _Data,
    recipe: Recipe,
    num_classes: int,
    out: str | None,
    facts: dict[str, Any],
    seed: int,
    progress: Progress,
) -> Run:
    """Train once, watched: for sets that are too large to be trained on several times."""
    rows, kept = np.flatnonzero(~found.held), np.flatnonzero(found.held)
    torch.manual_seed(seed)
    model = SmallResNet(num_classes=num_classes).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer, step_schedule = make_optimizer(model, recipe, len(rows))
    forward = forward_of(model)
    monitor = watch(
        model,
        optimizer,
        anchors=with_ids(TensorDataset(as_inputs(pictures[kept]), targets[kept]), list(found.ids[kept])),
        train_size=len(rows),
        out=out,
        class_names=facts["class_names"],
        trusted=found.is_trusted,
        num_classes=num_classes,
        seed=seed,
    )
    done = 0

    def after_epoch() -> None:
        nonlocal done
        done += 1
        progress("training the network", done, recipe.epochs)

    model.train()
    train(
        forward,
        optimizer,
        step_schedule,
        pictures,
        targets,
        rows,
        recipe,
        seed=seed,
        around=lambda batch: monitor.step(found.ids[batch], targets[batch]),
        after_epoch=after_epoch,
    )
    monitor.facts.update(facts)
    run: Run = monitor.close()
    return run
