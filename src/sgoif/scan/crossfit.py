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
from torch import Tensor

from sgoif.evidence import Sketches, hash_ids
from sgoif.finish import calibrated_run
from sgoif.gradients import find_head
from sgoif.influence import HoldOut
from sgoif.run import Run
from sgoif.scan.folds import Folds, Progress, Rows, Trainer, no_progress
from sgoif.scan.noise import learn_noise, read_noise
from sgoif.training.audit import AuditPart, audit_engine, audit_examples
from sgoif.training.canaries import CanaryLedger
from sgoif.training.noise import NoiseEvidence
from sgoif.training.recorder import Recorder
from sgoif.training.sinks import ScoreSink

__all__ = ["cross_fitted_audit"]

_BATCH = 250


def cross_fitted_audit(
    train: Trainer,
    inputs: Callable[[Rows], Tensor],
    labels: Tensor,
    ids: NDArray[Any],
    held: NDArray[np.bool_],
    *,
    num_classes: int,
    num_folds: int,
    noise_rounds: int | None = None,
    self_clean: bool = True,
    verified: NDArray[np.bool_] | None = None,
    sink: ScoreSink | None,
    facts: dict[str, Any],
    sketches: Sketches | None = None,
    unjudged: dict[str, NDArray[Any]] | None = None,
    seed: int = 0,
    progress: Progress = no_progress,
) -> Run:
    """Score every example that is not held out by a model that has not seen it.

    Args:
        train: trains a model on some rows; with a transition ``P(given | true)``, to predict the true class.
        inputs: rows to the model's inputs.
        labels: given classes, ``[N]``.
        ids: ``[N]``.
        held: which examples are the hold-out, ``[N]``.
        num_classes: ``C``.
        num_folds: how many models.
        noise_rounds: how often all of them are trained to learn the transition; 0 reads it off the trained models,
            None takes labels as they are.
        self_clean: whether a hold-out that is not verified may doubt its own labels; without, they are all believed.
        verified: whose labels a person has checked, ``[N]``; nobody's if left out.
        sink: where visits and tables go.
        facts: for the run's information.
        sketches: by which copies are found.
        unjudged: examples besides that cannot be judged: ``id``, ``given_label``, ``no_p_reason``.
        seed: of the hold-out's order.
        progress: told how far it is.
    """
    rows, kept = np.flatnonzero(~held), np.flatnonzero(held)
    fold = (hash_ids(ids[rows]).astype(np.uint64) >> np.uint64(7)) % np.uint64(num_folds)  # not the canaries' bits
    anchors = (inputs(kept), labels[kept])
    folds = Folds(train, inputs, labels, [rows[fold == number] for number in range(num_folds)], num_classes)
    model = learn_noise(folds, noise_rounds, progress) if noise_rounds else None
    parts: list[AuditPart] = []
    for number, (trained, forward) in enumerate(folds.train_all(model)):
        progress("training", number + 1, num_folds)
        holdout = HoldOut(anchors, num_classes=num_classes, seed=seed, least_held_out=1)
        holdout.ids = list(ids[kept])
        layer = find_head(trained, lambda forward=forward: forward(anchors[0][:2]))  # type: ignore[misc]
        engine = audit_engine(layer, holdout, train_size=len(rows), batch_size=_BATCH)
        parts.append(AuditPart(trained, engine, _batches(inputs, labels, ids, folds.rows[number]), forward, _losses))
    recorder = Recorder(num_classes, len(rows), sink)
    ledger = CanaryLedger(parts[0].engine, verified=None if verified is None else verified[kept])
    ledger.cleans_itself &= self_clean
    noise = None
    if noise_rounds is not None:
        forwards = [part.forward for part in parts]
        seen, held_out = folds.predict_all(forwards), np.mean([folds.predict(kept, f) for f in forwards], axis=0)
        if model is not None:
            noise = NoiseEvidence(model, seen, held_out)
        elif noise_rounds == 0:
            noise = read_noise(seen, folds.given, held_out)
    if noise is not None and noise.is_learnt and not ledger.trusted:
        given = labels[kept].numpy()
        belief = noise.model.posterior(noise.held_probabilities, given)[np.arange(len(given)), given]
        reason = f"a model of the noise doubts {1 - belief.mean():.0%} of the hold-out"
        ledger.believe(belief, [part.engine for part in parts], reason)
    scored = 0

    def after_batch(count: int) -> None:
        nonlocal scored
        scored += count
        progress("scoring", scored, len(rows))

    audit_examples(parts, recorder, ledger, after_batch=after_batch)
    facts = {
        **facts,
        "trusted": ledger.trusted,
        "num_verified": int(ledger.verified.sum()),
        "num_folds": num_folds,
        "noise_model": noise is not None,
    }
    return calibrated_run(
        ledger,
        recorder,
        parts[0].engine,
        facts,
        sketches=sketches,
        noise=noise,
        unjudged=unjudged,
        is_out_of_fold=num_folds > 1,
    )


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
