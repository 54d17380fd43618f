"""Cross-fitted audits: several models, each trained on some of the examples and scoring the others.

A model that was trained on an example has begun to believe its label. Everything is done once per fold: cheap for
linear heads, and for small sets of small pictures.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from sgoif.evidence import Sketches, hash_ids, measure_competence
from sgoif.finish import add_up, collect_run
from sgoif.gradients import find_head
from sgoif.influence import HoldOut
from sgoif.judging.fitting import fit_noise
from sgoif.judging.heads import PredictedHead
from sgoif.judging.judgement import Judgement, judge_fitted
from sgoif.run import Run
from sgoif.scanning import Progress, no_progress
from sgoif.scanning.issues import IssueFinder
from sgoif.training.audit import AuditPart, audit_engine, audit_examples
from sgoif.training.calibration import Judged
from sgoif.training.canaries import CanaryLedger
from sgoif.training.recorder import Recorder
from sgoif.training.sinks import ScoreSink
from sgoif.types import Columns

__all__ = ["LabelledSet", "ScanRun", "cross_fitted_audit"]

log = logging.getLogger(__name__)

Rows = NDArray[np.int64]
Forward = Callable[[Tensor], Tensor]
Trainer = Callable[[Rows], tuple[nn.Module, Forward]]  # rows to a model

_PROBABILITIES = ("p_mislabeled", "p_mislabeled_low", "p_mislabeled_high")
_OF_SUGGESTIONS = ("p_suggested", "p_suggested_2", "p_suggested_3")
_BATCH, _PREDICTED = 250, 1000  # examples that are scored at once, and predicted


@dataclass(frozen=True, slots=True)
class LabelledSet:
    """Examples to judge, and those among them that influences are measured on."""

    ids: NDArray[Any]  # [N]
    labels: Tensor  # given classes, [N]
    held: NDArray[np.bool_]  # the hold-out, [N]
    num_classes: int
    verified: NDArray[np.bool_] | None = None  # whose labels a person has checked, [N]; nobody's if left out


@dataclass(frozen=True, slots=True)
class ScanRun:
    """Where the run of a scan goes, and what it says besides scores."""

    sink: ScoreSink | None = None  # None keeps it in memory
    facts: Mapping[str, Any] = field(default_factory=dict)  # for its information
    sketches: Sketches | None = None  # by which duplicates are found
    unjudged: Columns | None = None  # examples besides: `id`, `given_label`, `no_p_reason`
    progress: Progress = no_progress  # called with the stage, what is done, and the total
    issues: IssueFinder | None = None  # checks the data as a whole


def cross_fitted_audit(
    train: Trainer,
    inputs: Callable[[Rows], Tensor],
    examples: LabelledSet,
    run: ScanRun,
    *,
    num_folds: int,
    estimate: Judgement | None = None,
    has_features: bool = False,
    seed: int = 0,
) -> Run:
    """Score every example that is not held out by a model that has not seen it.

    Args:
        train: trains a model on some rows.
        inputs: rows to the model's inputs.
        examples: with their labels.
        run: where it goes.
        num_folds: how many models.
        estimate: how likely each label is wrong; made from the models' own predictions if left out.
        has_features: whether the inputs are standardised features, by which the data as a whole is checked.
        seed: of the hold-out's order.
    """
    ids, labels, held, num_classes = examples.ids, examples.labels, examples.held, examples.num_classes
    rows, kept = np.flatnonzero(~held), np.flatnonzero(held)
    fold = (hash_ids(ids[rows]).astype(np.uint64) >> np.uint64(7)) % np.uint64(num_folds)  # not the canaries' bits
    anchors = (inputs(kept), labels[kept])
    folds = _Folds(train, inputs, labels, [rows[fold == number] for number in range(num_folds)], num_classes)
    parts: list[AuditPart] = []
    for number, (trained, forward) in enumerate(folds.train_all()):
        run.progress("training", number + 1, num_folds)
        holdout = HoldOut(anchors, num_classes=num_classes, seed=seed, least_held_out=1)
        holdout.ids = list(ids[kept])
        layer = find_head(trained, lambda forward=forward: forward(anchors[0][:2]))  # type: ignore[misc]
        engine = audit_engine(layer, holdout, train_size=len(rows), batch_size=_BATCH)
        parts.append(AuditPart(trained, engine, _batches(inputs, labels, ids, folds.rows[number]), forward, _losses))
    if estimate is None:
        estimate = _estimate(folds, [part.forward for part in parts], kept)
    recorder = Recorder(num_classes, len(rows), run.sink)
    is_verified = np.zeros(len(ids), bool) if examples.verified is None else examples.verified
    ledger = CanaryLedger(parts[0].engine, verified=is_verified[kept])
    if not ledger.trusted:
        belief = np.where(is_verified[kept], 1.0, 1 - estimate.p[kept])
        doubt = f"an estimate from {len(ids):,} examples doubts {1 - belief.mean():.1%} of the hold-out"
        ledger.believe(belief, [part.engine for part in parts], doubt)
        ledger.cleans_itself = False
    scored = 0

    def after_batch(count: int) -> None:
        nonlocal scored
        scored += count
        run.progress("scoring", scored, len(rows))

    audit_examples(parts, recorder, ledger, after_batch=after_batch)
    facts = {
        **run.facts,
        "trusted": ledger.trusted,
        "num_verified": int(ledger.verified.sum()),
        "num_folds": num_folds,
    }
    facts |= _facts(estimate, labels.numpy(), num_classes, ledger.labels)
    if run.issues is not None:
        features = inputs(np.arange(len(ids))).numpy() if has_features else None
        facts["data_issues"] = run.issues.find(ids, estimate, features, can_judge=facts["no_p_reason"] is None)
    columns = _estimate_columns(estimate, ids, labels.numpy(), is_verified)
    return _collect(recorder, ledger.table(parts[0].engine), columns, facts, run)


def _collect(recorder: Recorder, holdout: Columns, estimate: Columns, facts: dict[str, Any], run: ScanRun) -> Run:
    """Add up a run whose labels were judged apart from its scores.

    Args:
        recorder: what was recorded of the training examples.
        holdout: the hold-out's own scores.
        estimate: ``p_mislabeled`` and suggestions of training and hold-out examples, by ``id``.
        facts: for the run's information; with a ``no_p_reason`` the estimate ranks labels and gives no probabilities.
        run: where it goes.
    """
    examples, why = add_up(recorder), facts["no_p_reason"]
    order = np.argsort(estimate["id"], kind="stable")

    def add_estimate(table: Columns) -> Columns:
        rows = order[np.searchsorted(estimate["id"], table["id"], sorter=order)]
        found = {name: values[rows] for name, values in estimate.items()}
        found["label_score"] = 1 - found["p_mislabeled"]
        if why is not None:
            found |= {name: np.full(len(rows), np.nan) for name in (*_PROBABILITIES, *_OF_SUGGESTIONS)}
        return table | found

    looked_like = examples["suggested_label"]
    examples, holdout = add_estimate(examples), add_estimate(holdout)
    changed = examples["suggested_label"] != looked_like  # votes are for what the scores saw
    examples["suggested_share"] = np.where(changed, np.nan, examples["suggested_share"])
    judged = None
    if why is None:
        p, low, high = (examples[name] for name in _PROBABILITIES)
        facts |= {"no_totals_reason": None, "expected_errors": float(p.sum() + holdout["p_mislabeled"].sum())}
        judged = Judged(p, low, high, None)
    else:
        log.warning("this run has no probabilities: %s. Its labels are ranked by `label_score`.", why)
    about: dict[str, Any] = {"sketches": run.sketches, "unjudged": run.unjudged}
    return collect_run(recorder, facts, judged=judged, examples=examples, holdout=holdout, **about)


@dataclass(frozen=True, slots=True)
class _Folds:
    """Examples in folds, and how to train a model on all folds but one."""

    train: Trainer
    inputs: Callable[[Rows], Tensor]
    labels: Tensor
    rows: Sequence[Rows]  # by fold
    num_classes: int

    def train_all(self) -> Iterator[tuple[nn.Module, Forward]]:
        """Train one model per fold, on the others; a single fold is trained on itself."""
        for number in range(len(self.rows)):
            others = [rows for other, rows in enumerate(self.rows) if other != number or len(self.rows) == 1]
            yield self.train(np.sort(np.concatenate(others)))

    def predict(self, rows: Rows, forward: Forward) -> NDArray[np.float32]:
        """Predict any examples, ``[n, C]``."""
        found = np.empty((len(rows), self.num_classes), np.float32)
        with torch.no_grad():
            for first in range(0, len(rows), _PREDICTED):
                mine = rows[first : first + _PREDICTED]
                found[first : first + _PREDICTED] = forward(self.inputs(mine)).softmax(1).numpy()
        return found


def _estimate(folds: _Folds, forwards: Sequence[Forward], kept: Rows) -> Judgement:
    """Judge labels by the predictions of models that were trained on other examples."""
    log_p = torch.zeros(len(folds.labels), folds.num_classes)
    for rows, forward in zip(folds.rows, forwards, strict=True):
        log_p[rows] = torch.from_numpy(folds.predict(rows, forward)).clamp_min(1e-9).log()
    log_p[kept] = torch.from_numpy(np.mean([folds.predict(kept, f) for f in forwards], axis=0)).clamp_min(1e-9).log()
    return judge_fitted(fit_noise([PredictedHead(log_p)], folds.labels.numpy(), folds.num_classes))


def _estimate_columns(
    estimate: Judgement, ids: NDArray[Any], given: NDArray[np.int64], is_verified: NDArray[np.bool_]
) -> Columns:
    """The estimate as columns of a table, with a row per example; a label that a person has verified is not doubted."""
    columns: Columns = {"id": ids, "given_label": given}
    for tail, values in (("", estimate.p), ("_low", estimate.p_low), ("_high", estimate.p_high)):
        columns[f"p_mislabeled{tail}"] = np.where(is_verified, 0.0, values)
    for place in range(estimate.suggested.shape[1]):
        tail = f"_{place + 1}" if place else ""
        columns[f"suggested_label{tail}"] = estimate.suggested[:, place]
        columns[f"p_suggested{tail}"] = np.where(is_verified, 0.0, estimate.p_suggested[:, place])
    return columns


def _facts(
    estimate: Judgement, labels: NDArray[np.int64], num_classes: int, held_labels: NDArray[np.int64]
) -> dict[str, Any]:
    """What the run's information keeps of the estimate, and whether the models know enough to judge labels."""
    given = labels[estimate.sampled]
    competence = measure_competence(estimate.predicted == given, given, num_classes, estimate.expected_accuracy)
    return {
        "held_out_per_class": np.bincount(held_labels, minlength=num_classes).tolist(),
        "competence": asdict(competence),
        "no_p_reason": competence.why_not,
        "transition": estimate.transition.tolist(),
        "estimate": estimate.facts(),
    }


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
