"""A scan of examples that several annotators labelled: consensus, the quality of annotators, and whom to ask again.

The label that a run judges is the one that most annotators gave; its table has the consensus beside it. So everything
that a run of classes can be asked (``label_issues``, the page, ``check``, exports) can be asked of this one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sgoif.errors import SgoifError
from sgoif.evidence import measure_competence
from sgoif.evidence.annotators import Annotation, Votes, judge_votes
from sgoif.judging.folds import FeatureHead, make_folds
from sgoif.judging.linear import LinearHead
from sgoif.judging.pool import blocks, fit_pool
from sgoif.run import Run
from sgoif.scanning.scan_run import ScanRun
from sgoif.scanning.standardise import check_features, find_finite, standardise
from sgoif.scanning.tabular import MOST_COLUMNS, make_fourier_head
from sgoif.scanning.unjudged import LEAST_PER_CLASS, append_unjudged
from sgoif.types import Columns, Floats, Ints

__all__ = ["Annotation", "audit_annotators", "judge_annotators"]

log = logging.getLogger(__name__)

_NO_LABEL, _NOT_FINITE = "no annotator labelled it", "its features are not finite"


def judge_annotators(labels: Ints, log_p: Floats | None, num_classes: int) -> Annotation:
    """Find the consensus of several annotators, how good each of them is, and which examples to ask about again.

    Args:
        labels: given classes, ``[N, A]``, -1 where an annotator gave none.
        log_p: log probabilities of a model that has not seen the example's labels, ``[N, C]``; it is one voice more,
            weighted by how well it predicts the labels. None without a model.
        num_classes: ``C``.

    Raises:
        SgoifError: The shapes do not fit, a class is out of range, or nobody gave a label.
    """
    labels = _check_labels(labels, num_classes)
    if log_p is not None:
        if np.shape(log_p) != (len(labels), num_classes):
            raise SgoifError(
                f"log_p has the shape {list(np.shape(log_p))}, expected [{len(labels):,}, {num_classes:,}]."
            )
        log_p = np.maximum(np.asarray(log_p, dtype=np.float64), -14.0)  # a model is never surer than one in a million
        if not np.isfinite(log_p).all():
            raise SgoifError("log_p holds values that are not finite; give log probabilities, or leave the model out.")
    return judge_votes(Votes.of(labels, num_classes), log_p)


def audit_annotators(
    rows: NDArray[np.floating[Any]],
    labels: Ints,
    ids: NDArray[Any],
    *,
    class_names: Sequence[str],
    annotator_names: Sequence[str],
    seed: int = 0,
    run: ScanRun | None = None,
) -> Run:
    """Judge labels of several annotators, with a model of the features as one voice more.

    Args:
        rows: features, ``[N, D]``; outliers are clamped.
        labels: given classes, ``[N, A]``, -1 where an annotator gave none.
        ids: ``[N]``.
        class_names: of the classes.
        annotator_names: of the annotators.
        seed: kept with the run; nothing here is random.
        run: where it goes; its information is kept beside what is found here.

    Raises:
        SgoifError: Features are no table of numbers, the shapes do not fit, or fewer than two classes can be learnt.
    """
    run, num_classes = run or ScanRun(), len(class_names)
    rows, labels = check_features(rows, len(ids)), _check_labels(labels, num_classes)
    if labels.shape != (len(ids), len(annotator_names)):
        raise SgoifError(
            f"the labels have the shape {list(labels.shape)}, expected a row for each of {len(ids):,} examples and a "
            f"column for each of {len(annotator_names):,} annotators."
        )
    is_finite, has_label = find_finite(rows), (labels >= 0).any(1)
    kept = is_finite & has_label
    run.progress("judging annotators", 0, 3)
    alone = judge_votes(Votes.of(labels[kept], num_classes), None)
    inputs = standardise(rows if kept.all() else rows[kept]).inputs
    run.progress("fitting", 1, 3)
    log_p = _predict(inputs, alone.consensus, ids[kept], num_classes)
    run.progress("judging annotators", 2, 3)
    found = judge_votes(Votes.of(labels[kept], num_classes), log_p)
    competence = measure_competence(log_p.argmax(1) == found.consensus, found.consensus, num_classes)
    if found.why_not is not None:
        log.warning("this run has no probabilities: %s. Its labels are ranked by `label_score`.", found.why_not)
    reasons = np.where(has_label, _NOT_FINITE, _NO_LABEL)[~kept].astype(object)
    unjudged: Columns = {"id": ids[~kept], "no_p_reason": reasons, "num_labels": np.zeros(len(reasons), np.int64)}
    judged = float(found.p_majority_wrong.sum())
    facts = {
        "task": "annotators",
        "seed": seed,
        "class_names": list(class_names),
        "competence": asdict(competence),
        "no_p_reason": found.why_not,
        "no_totals_reason": None,
        "expected_errors": None if found.why_not is not None else judged,
        "annotation": {
            "structure": found.structure,
            "gain": found.gain,
            "model_trust": found.model_trust,
            "num_labels": int(found.num_labels.sum()),
            "num_overlapping": found.num_overlapping,
            "num_changed": int((found.consensus != found.majority).sum()),
        },
        "num_not_judged": int((~kept).sum()),
    }
    run.progress("judging annotators", 3, 3)
    examples = append_unjudged(_columns(found, ids[kept]), unjudged)
    return run.save(facts, examples, annotators=_annotator_columns(found, annotator_names))


def _check_labels(labels: Any, num_classes: int) -> Ints:
    found = np.asarray(labels)
    if found.ndim != 2 or found.dtype.kind not in "iu":
        raise SgoifError(
            f"the labels are {found.dtype} of shape {list(found.shape)}, expected whole numbers [N, A]: a column per "
            "annotator, -1 where one gave no label."
        )
    if num_classes < 2:
        raise SgoifError(f"there must be at least two classes, got {num_classes}.")
    if found.size == 0 or not (found >= 0).any():
        raise SgoifError("no annotator gave a label; absent ones are -1, given ones are 0 and more.")
    if found.min() < -1 or found.max() >= num_classes:
        raise SgoifError(
            f"labels must lie between -1 (none) and {num_classes - 1}; got {found.min()} to {found.max()}."
        )
    return found.astype(np.int64)


def _predict(inputs: Tensor, labels: Ints, ids: NDArray[Any], num_classes: int) -> Floats:
    """Log probabilities out of fold, ``[N, C]``, by heads that learn the consensus of the annotators alone."""
    sizes = np.bincount(labels, minlength=num_classes)
    known = np.flatnonzero(sizes >= LEAST_PER_CLASS)
    if len(known) < 2:
        raise SgoifError(f"a scan needs two classes with at least {LEAST_PER_CLASS} examples each.")
    # rare classes are not learnt: an example of one is predicted from the others, and the rare class gets little
    place = np.full(num_classes, -1)
    place[known] = np.arange(len(known))
    learnt = np.flatnonzero(place[labels] >= 0)
    rows, codes = torch.from_numpy(learnt), place[labels[learnt]]
    folds = make_folds(ids[learnt], codes)
    own = inputs if len(learnt) == len(inputs) else inputs[rows]
    heads: list[FeatureHead] = [LinearHead(own, len(known), folds)]
    heads += [make_fourier_head(own, len(known), folds)] if own.shape[1] <= MOST_COLUMNS else []
    pool = fit_pool([head.fit(torch.from_numpy(codes)) for head in heads], torch.from_numpy(codes))
    found = np.full((len(labels), num_classes), 1e-6)
    for some in blocks(len(learnt), len(known)):
        found[np.ix_(learnt[some], known)] = pool.predict(some).numpy()
    missing = np.setdiff1d(np.arange(len(labels)), learnt)
    found[missing] = 1 / num_classes
    found = found.clip(min=1e-6)
    return np.asarray(np.log(found / found.sum(1, keepdims=True)))


def _columns(found: Annotation, ids: NDArray[Any]) -> Columns:
    """The table of examples; the given label is the one that most annotators gave."""
    p = {
        "p_mislabeled": found.p_majority_wrong,
        "p_mislabeled_low": found.p_majority_wrong_low,
        "p_mislabeled_high": found.p_majority_wrong_high,
    }
    if found.why_not is not None:
        p = {name: np.full(len(ids), np.nan) for name in p}
    return {
        "id": ids,
        "given_label": found.majority,
        **{"suggested_label" + (f"_{i + 1}" if i else ""): found.suggested[:, i] for i in range(3)},
        "consensus_label": found.consensus,
        "p_consensus": found.p_consensus if found.why_not is None else np.full(len(ids), np.nan),
        "agreement": found.agreement,
        "num_labels": found.num_labels,
        "ask_gain": found.ask_gain,
        "label_score": 1 - found.p_majority_wrong,
        **p,
        "no_p_reason": np.full(len(ids), found.why_not, dtype=object),
    }


def _annotator_columns(found: Annotation, names: Sequence[str]) -> Columns:
    return {
        "annotator": np.array([str(name) for name in names], dtype=object),
        "num_labels": found.annotator_labels,
        "quality": found.quality,
        "quality_low": found.quality_low,
        "quality_high": found.quality_high,
        "agreement": found.annotator_agreement,
    }
