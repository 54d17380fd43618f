"""What a scan says of a draw: with the rule that tells weakness from noise, and without it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from time import process_time
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from benchmarks.trust.rivals import Finding
from sgoif.evidence import measure_competence
from sgoif.evidence.draws import error_rates
from sgoif.judging import fitting
from sgoif.judging.judgement import Judgement
from sgoif.judging.noise import NoiseModel
from sgoif.judging.pool import Pool
from sgoif.judging.weakness import Belief
from sgoif.scanning.estimate import estimate_features
from sgoif.scanning.standardise import standardise
from sgoif.types import Floats

__all__ = ["Said", "judge"]


@dataclass(frozen=True, slots=True)
class Said:
    """A finding, and what it rests on."""

    finding: Finding
    low: NDArray[np.float64]  # lower end of p, NaN where there is no p, [N]
    kind: str  # what is believed of the noise; "none" where the heads are not good enough to judge labels
    evidence: float | None  # nats by which what was counted beats weakness; None without the rule


def judge(rows: NDArray[np.float32], given: NDArray[np.int64], num_classes: int, *, rule: bool) -> Said:
    """Judge every label.

    The judgement is read as a scan reads it: where nobody can tell, or heads are not competent, labels are ranked, and
    no probability, flag or total is given.
    """
    started, ids = process_time(), np.arange(len(given))
    with nullcontext() if rule else patch.object(fitting, "settle", _believe):
        judgement = estimate_features(standardise(rows).inputs, ids, given, num_classes)
    seconds = process_time() - started
    competence = measure_competence(judgement.predicted == given, given, num_classes, judgement.expected_accuracy)
    kind = judgement.kind if competence.is_competent else "none"
    p, low = judgement.p, judgement.p_low
    if kind in ("none", "unknown"):
        low = np.full(len(given), np.nan)
        why = competence.why_not or (
            "the model's own doubt explains the labels as well as errors would: between none and "
            f"{competence.most_wrong:.0%} may be wrong"
        )
        between = (0.0, competence.most_wrong) if kind == "unknown" else None
        finding = Finding(p, np.zeros(len(given), bool), None, None, None, between, seconds, why)
    else:
        between = _between(judgement, competence.most_wrong)
        suggested = np.where(judgement.suggested[:, 0] < 0, given, judgement.suggested[:, 0])
        finding = Finding(p, p >= 0.5, suggested, p, float(p.sum()), between, seconds)
    return Said(finding, low, kind, judgement.evidence if rule else None)


def _between(judgement: Judgement, most_wrong: float) -> tuple[float, float]:
    """The share of wrong labels at least, and at most: what heads contradict may be their mistake or a wrong label."""
    ends = judgement.p, judgement.p_low, judgement.p_high
    rates = error_rates(*ends, np.zeros(len(judgement.p), np.int64), 1)
    return float(rates.low[0]), max(float(rates.high[0]), most_wrong)


def _believe(base: Pool, counted: NoiseModel, near: Floats | None) -> Belief:
    """In place of :func:`sgoif.judging.weakness.settle`: what was counted, whatever weak heads explain."""
    del base, near
    return Belief("counted", counted, None, None, 1 - float(np.diag(counted.transition).mean()), 0.0)
