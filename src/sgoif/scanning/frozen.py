"""Frozen features: standardised, their labels judged by cross-fitted heads, and influences of linear ones.

Rows that are not finite, and classes of a few examples, are not judged; the run names them with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from sgoif.errors import SgoifError
from sgoif.run import Run
from sgoif.scanning.crossfit import LabelledSet, ScanRun, cross_fitted_audit
from sgoif.scanning.estimate import estimate_features
from sgoif.scanning.holdout import find_reasons, split_unjudged
from sgoif.scanning.standardise import check_features, standardise

__all__ = ["NUM_FOLDS", "audit_embeddings", "given_loss", "train_head"]

NUM_FOLDS = 4  # of the heads whose influences are measured
_BATCH = 250  # at most; few examples make small batches, so that there are steps enough
_LOGIT_PER_STEP = 1.28  # how far Adam may move a logit in one step, whatever the number of features
_CHECKED = 100_000  # rows looked at together
_NAMED = 20  # ids of outliers that a run names
_MOST_TRAINED = 200_000  # examples that a head is trained on; beyond, a sample
_STEPS = 180  # of one training, or two passes: a head that has time learns the wrong labels too


def audit_embeddings(
    rows: NDArray[np.floating[Any]],
    labels: NDArray[np.int64],
    ids: NDArray[Any],
    held: NDArray[np.bool_],
    *,
    num_classes: int,
    verified: NDArray[np.bool_] | None = None,
    epochs: int | None = None,
    seed: int = 0,
    run: ScanRun | None = None,
) -> Run:
    """Judge every label by heads that have not seen it, and score influences on the hold-out.

    Args:
        rows: embeddings, ``[N, D]``; outliers are clamped and named in ``run.info``.
        labels: given classes, ``[N]``.
        ids: ``[N]``.
        held: which examples are the hold-out that influences are measured on, ``[N]``; their labels are judged too.
        num_classes: ``C``.
        verified: whose labels a person has checked, ``[N]``; nobody's if left out.
        epochs: of the training of the heads whose influences are measured; by the number of examples if left out.
        seed: of everything random.
        run: where it goes.

    Raises:
        SgoifError: Embeddings are no table of numbers or all the same, or fewer than two classes can be judged.
    """
    run = run or ScanRun()
    rows, facts = check_features(rows, len(labels)), dict(run.facts)
    is_finite = np.concatenate(
        [np.isfinite(part).all(1) for part in np.split(rows, range(_CHECKED, len(rows), _CHECKED))]
    )
    if not is_finite.any():
        raise SgoifError(f"none of the {len(rows):,} embeddings is finite; check what made them.")
    standard = standardise(rows if is_finite.all() else rows[is_finite])
    is_outlier, is_broken = np.zeros((2, len(rows)), bool)
    is_outlier[is_finite], is_broken[is_finite] = standard.is_outlier, standard.is_broken
    known = {
        "its embedding is not finite": ~is_finite,
        "its embedding lies more than 1,000 standard deviations from all others": is_broken,
    }
    reasons = find_reasons(labels, num_classes, facts.get("class_names", ()), known=known)
    kept, unjudged = split_unjudged(ids, labels, reasons)
    facts |= {
        "not_finite": int((~is_finite).sum()),
        "clamped_values": standard.num_clamped,
        "outliers": int(is_outlier.sum()),
        "outlier_ids": ids[is_outlier][:_NAMED].tolist(),
    }
    labels, ids, held = labels[kept], ids[kept], held[kept]
    verified = None if verified is None else verified[kept]
    inputs, targets = standard.inputs, torch.from_numpy(labels)
    if len(labels) < len(inputs):
        inputs = inputs[torch.from_numpy(kept[is_finite])]
    present, codes = np.unique(labels, return_inverse=True)  # classes without an example are not predicted
    found = estimate_features(inputs, ids, codes.reshape(-1), len(present), progress=run.progress)
    found = found.at_classes(present, num_classes)
    noise = torch.from_numpy(found.transition).float()
    return cross_fitted_audit(
        lambda mine: train_head(inputs, targets, mine, num_classes, transition=noise, epochs=epochs, seed=seed),
        lambda mine: inputs[mine],
        LabelledSet(ids, targets, held, num_classes, verified),
        replace(run, facts=facts, unjudged=unjudged),
        num_folds=NUM_FOLDS,
        estimate=found,
        has_features=True,
        seed=seed,
    )


def train_head(
    inputs: Tensor,
    targets: Tensor,
    rows: NDArray[np.int64],
    num_classes: int,
    *,
    transition: Tensor | None = None,
    epochs: int | None = None,
    seed: int = 0,
) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """Train a linear head on some rows; returns it as a model, and its forward pass.

    It starts from zero: through a transition, what a random start puts between two confused classes hardly fades.

    Args:
        inputs: standardised features, ``[N, D]``.
        targets: given classes, ``[N]``.
        rows: which of them to train on, or on a sample of which where they are many.
        num_classes: ``C``.
        transition: ``P(given | true)``; with it the head learns to predict the true class, not the given one.
        epochs: of the training; as many as 180 steps take, and at least two, if left out.
        seed: of the order.
    """
    generator = torch.Generator().manual_seed(seed)
    head = nn.Linear(inputs.shape[1], num_classes)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.zero_()
    optimizer = torch.optim.Adam(head.parameters(), min(_LOGIT_PER_STEP / inputs.shape[1], 0.05), weight_decay=1e-4)
    mine, size = torch.from_numpy(rows), int(np.clip(len(rows) // 20, 32, _BATCH))
    if len(mine) > _MOST_TRAINED:
        mine = mine[torch.randperm(len(mine), generator=generator)[:_MOST_TRAINED]]
    for _ in range(epochs or max(2, round(_STEPS * size / len(mine)))):
        for batch in mine[torch.randperm(len(mine), generator=generator)].split(size):
            optimizer.zero_grad()
            given_loss(head(inputs[batch]), targets[batch], transition).backward()
            optimizer.step()
    model = nn.Sequential(head)
    return model, model


def given_loss(logits: Tensor, targets: Tensor, transition: Tensor | None) -> Tensor:
    """Cross-entropy of the given classes, seen through a transition where there is one."""
    if transition is None:
        return F.cross_entropy(logits, targets)
    return F.nll_loss((logits.softmax(1) @ transition).clamp_min(1e-8).log(), targets)
