"""Labels judged on features that stay as they are: standardised, each label by heads that have not seen it.

Rows that are not finite, and classes of a few examples, are not judged; the run names them with the reason.
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sgoif.errors import SgoifError
from sgoif.evidence import LIKENESS_COLUMNS, Competence, error_share, measure_competence, sign_sketch
from sgoif.judging.judgement import Judgement, why_no_probabilities
from sgoif.run import Run
from sgoif.scanning.estimate import estimate_features
from sgoif.scanning.scan_run import ScanRun
from sgoif.scanning.standardise import Standardised, check_features, find_finite, standardise
from sgoif.scanning.unjudged import append_unjudged, find_reasons, split_unjudged
from sgoif.types import Columns

__all__ = ["audit_embeddings"]

log = logging.getLogger(__name__)

_NAMED = 20  # ids of outliers that a run names


def audit_embeddings(
    rows: NDArray[np.floating[Any]],
    labels: NDArray[np.int64],
    ids: NDArray[Any],
    *,
    num_classes: int,
    verified: NDArray[np.bool_] | None = None,
    run: ScanRun | None = None,
) -> Run:
    """Judge every label by heads that have not seen it.

    Args:
        rows: embeddings, ``[N, D]``; outliers are clamped and named in ``run.info``.
        labels: given classes, ``[N]``; those that a person has checked where one did.
        ids: ``[N]``.
        num_classes: ``C``.
        verified: whose labels a person has checked, ``[N]``; nobody's if left out. They are not doubted.
        run: where it goes.

    Raises:
        SgoifError: Embeddings are no table of numbers or all the same, or fewer than two classes can be judged.
    """
    run = run or ScanRun()
    rows = check_features(rows, len(labels))
    standard, is_finite = _standardise_finite(rows)
    reasons = _find_reasons(standard, is_finite, labels, num_classes, run)
    kept, unjudged = split_unjudged(ids, labels, reasons)
    is_outlier = _spread(standard.is_outlier, is_finite)
    facts = {
        "not_finite": int((~is_finite).sum()),
        "clamped_values": standard.num_clamped,
        "outliers": int(is_outlier.sum()),
        "outlier_ids": ids[is_outlier][:_NAMED].tolist(),
    }
    inputs, labels, ids = standard.inputs, labels[kept], ids[kept]
    if len(labels) < len(inputs):
        inputs = inputs[torch.from_numpy(kept[is_finite])]
    estimate = _estimate(inputs, ids, labels, num_classes, run)
    is_verified = np.zeros(len(ids), bool) if verified is None else verified[kept]
    facts |= _facts(estimate, labels, num_classes, is_verified)
    why = facts["no_p_reason"]
    if why is not None:
        log.warning("this run has no probabilities: %s. Its labels are ranked by `label_score`.", why)
    examples = _columns(estimate, ids, labels, is_verified, why) | _likeness(inputs)
    if run.issues is not None:
        p, low, high = (examples[f"p_mislabeled{tail}"][~is_verified] for tail in ("", "_low", "_high"))
        most = Competence(**facts["competence"]).most_wrong
        share = None if why is not None else error_share(p, low, high, most)
        facts["data_issues"] = run.issues.find(ids, estimate, inputs.numpy(), share)
    facts["expected_errors"] = None if why is not None else float(examples["p_mislabeled"].sum())
    facts["num_not_judged"] = int((~kept).sum())
    return run.save(facts, append_unjudged(examples, unjudged))


def _standardise_finite(rows: NDArray[Any]) -> tuple[Standardised, NDArray[np.bool_]]:
    """Standardise the rows that are finite; and which those are, ``[N]``."""
    is_finite = find_finite(rows)
    if not is_finite.any():
        raise SgoifError(f"none of the {len(rows):,} embeddings is finite; check what made them.")
    return standardise(rows if is_finite.all() else rows[is_finite]), is_finite


def _find_reasons(
    standard: Standardised, is_finite: NDArray[np.bool_], labels: NDArray[np.int64], num_classes: int, run: ScanRun
) -> NDArray[np.object_]:
    """Why labels cannot be judged, None where they can, ``[N]``."""
    known = {
        "its embedding is not finite": ~is_finite,
        "its embedding lies more than 1,000 standard deviations from all others": _spread(
            standard.is_broken, is_finite
        ),
    }
    return find_reasons(labels, num_classes, run.facts.get("class_names", ()), known=known)


def _spread(values: NDArray[np.bool_], rows: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Values of some rows, False at all others, ``[N]``."""
    found = np.zeros(len(rows), bool)
    found[rows] = values
    return found


def _estimate(
    inputs: Tensor, ids: NDArray[Any], labels: NDArray[np.int64], num_classes: int, run: ScanRun
) -> Judgement:
    present, codes = np.unique(labels, return_inverse=True)  # classes without an example are not predicted
    found = estimate_features(inputs, ids, codes.reshape(-1), len(present), progress=run.progress)
    return found.at_classes(present, num_classes)


def _columns(
    estimate: Judgement,
    ids: NDArray[Any],
    given: NDArray[np.int64],
    is_verified: NDArray[np.bool_],
    why: str | None,
) -> Columns:
    """The table of examples; a label that a person has verified is not doubted."""
    p = np.where(is_verified, 0.0, estimate.p)
    columns: Columns = {"id": ids, "given_label": given, "trusted": is_verified, "label_score": 1 - p}
    columns["no_p_reason"] = np.full(len(ids), why, dtype=object)

    def known(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.full(len(ids), np.nan) if why is not None else np.where(is_verified, 0.0, values)

    for tail, values in (("", estimate.p), ("_low", estimate.p_low), ("_high", estimate.p_high)):
        columns[f"p_mislabeled{tail}"] = known(values)
    for place, tail in enumerate(("", "_2", "_3")):
        columns[f"suggested_label{tail}"] = estimate.suggested[:, place]
        columns[f"p_suggested{tail}"] = known(estimate.p_suggested[:, place])
    return columns


def _likeness(inputs: Tensor) -> Columns:
    """By which the nearest examples are found."""
    return dict(zip(LIKENESS_COLUMNS, sign_sketch(inputs.numpy()).T, strict=True))


def _facts(
    estimate: Judgement, labels: NDArray[np.int64], num_classes: int, is_verified: NDArray[np.bool_]
) -> dict[str, Any]:
    """What the run's information keeps of the estimate, and whether the heads know enough to judge labels."""
    given = labels[estimate.sampled]
    competence = measure_competence(estimate.predicted == given, given, num_classes, estimate.expected_accuracy)
    return {
        "competence": asdict(competence),
        "no_p_reason": why_no_probabilities(estimate.kind, competence),
        "no_totals_reason": None,
        "transition": estimate.transition.tolist(),
        "estimate": estimate.facts(),
        "num_verified": int(is_verified.sum()),
    }
