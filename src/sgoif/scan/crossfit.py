"""Cross-fitted audits: several models, each trained on some of the examples and scoring the others.

A model that was trained on an example has begun to believe its label; one that was not is as new to it as to the
hold-out, so that what the canaries teach holds for it. Everything is done once per fold: cheap for linear heads, and
for small sets of small pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from sgoif.evidence import Sketches, hash_ids
from sgoif.finish import calibrated_run
from sgoif.gradients import find_head
from sgoif.influence import HoldOut
from sgoif.run import Run
from sgoif.training.audit import AuditPart, audit_engine, audit_examples
from sgoif.training.canaries import CanaryLedger
from sgoif.training.recorder import Recorder
from sgoif.training.sinks import ScoreSink

__all__ = ["Progress", "cross_fitted_audit", "no_progress"]

Rows = NDArray[np.int64]
Progress = Callable[[str, int, int], None]  # what is done, how much of it, how much there is
Trainer = Callable[[Rows], tuple[nn.Module, Callable[[Tensor], Tensor]]]  # rows to a model and its forward pass

_BATCH = 250


def no_progress(stage: str, done: int, total: int) -> None:
    """Tell nobody."""


def cross_fitted_audit(
    train: Trainer,
    inputs: Callable[[Rows], Tensor],
    labels: Tensor,
    ids: NDArray[Any],
    held: NDArray[np.bool_],
    *,
    num_classes: int,
    num_folds: int,
    trusted: bool,
    sink: ScoreSink | None,
    facts: dict[str, Any],
    sketches: Sketches | None = None,
    seed: int = 0,
    progress: Progress = no_progress,
) -> Run:
    """Score every example that is not held out by a model that has not seen it.

    Args:
        train: trains a model on some rows.
        inputs: rows to the model's inputs.
        labels: given classes, ``[N]``.
        ids: ``[N]``.
        held: which examples are the hold-out, ``[N]``.
        num_classes: ``C``.
        num_folds: how many models.
        trusted: whether the hold-out's labels are verified.
        sink: where visits and tables go.
        facts: for the run's information.
        sketches: by which copies are found.
        seed: of the hold-out's order.
        progress: told how far it is.
    """
    rows, kept = np.flatnonzero(~held), np.flatnonzero(held)
    fold = (hash_ids(ids[rows]).astype(np.uint64) >> np.uint64(7)) % np.uint64(num_folds)  # not the canaries' bits
    anchors = (inputs(kept), labels[kept])
    parts: list[AuditPart] = []
    for number in range(num_folds):
        model, forward = train(rows[fold != number] if num_folds > 1 else rows)
        progress("training", number + 1, num_folds)
        holdout = HoldOut(anchors, num_classes=num_classes, seed=seed)
        holdout.ids = list(ids[kept])
        layer = find_head(model, lambda forward=forward: forward(anchors[0][:2]))  # type: ignore[misc]
        engine = audit_engine(layer, holdout, train_size=len(rows), batch_size=_BATCH)
        parts.append(AuditPart(model, engine, _batches(inputs, labels, ids, rows[fold == number]), forward, _losses))
    recorder = Recorder(num_classes, len(rows), sink)
    ledger = CanaryLedger(parts[0].engine, trusted=trusted)
    scored = 0

    def after_batch(count: int) -> None:
        nonlocal scored
        scored += count
        progress("scoring", scored, len(rows))

    audit_examples(parts, recorder, ledger, after_batch=after_batch)
    facts = {**facts, "trusted": trusted, "num_folds": num_folds}
    return calibrated_run(ledger, recorder, parts[0].engine, facts, sketches=sketches)


def _batches(
    inputs: Callable[[Rows], Tensor], labels: Tensor, ids: NDArray[Any], rows: Rows
) -> Callable[[], Iterator[tuple[Tensor, Tensor, NDArray[Any]]]]:
    def start() -> Iterator[tuple[Tensor, Tensor, NDArray[Any]]]:
        for first in range(0, len(rows), _BATCH):
            mine = rows[first : first + _BATCH]
            yield inputs(mine), labels[mine], ids[mine]

    return start


def _losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.float(), targets, reduction="none")
