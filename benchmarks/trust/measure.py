"""What a finding is worth, held against the truth. Shares are in percent."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.metrics import average_precision, precision_at
from benchmarks.trust.draws import Draw
from benchmarks.trust.rivals import Finding

_BINS = 10


def measure(found: Finding, draw: Draw) -> dict[str, Any]:
    """All figures of one finding; None where a figure has no meaning (no errors, no flags, no p)."""
    wrong = draw.wrong
    score = np.nan_to_num(found.score, nan=-np.inf) if np.isnan(found.score).any() else found.score
    report: dict[str, Any] = {"seconds": round(found.seconds, 2), "total": found.total, "reason": found.reason}
    if wrong.any():
        finite = np.where(np.isfinite(score), score, np.nanmin(score[np.isfinite(score)]) - 1)
        budget = np.argsort(-finite, kind="stable")[: int(wrong.sum())]
        report |= {
            "ap": 100 * average_precision(finite, wrong),
            "p@1%": 100 * precision_at(finite, wrong, 0.01),
            "missed": 100 * (1 - wrong[budget].mean()),  # share of the errors missed at a budget equal to their number
            "recall_at_precision": _recall_at_precision(finite, wrong),
        }
    if found.flagged is not None:
        report |= _flags(found, draw)
    if found.p is not None:
        known = np.isfinite(found.p)
        report["ece"] = 100 * _ece(found.p[known], wrong[known])
        report["brier"] = float(np.mean((found.p[known] - wrong[known]) ** 2))
    if found.rate_range is not None:
        low, high = found.rate_range
        report["rate_range"] = {"low": low, "high": high, "true": float(wrong.mean())}
    return report


def _flags(found: Finding, draw: Draw) -> dict[str, Any]:
    assert found.flagged is not None
    flagged, wrong = found.flagged, draw.wrong
    figures: dict[str, Any] = {"num_flagged": int(flagged.sum())}
    if flagged.any():
        figures["flag_precision"] = 100 * float(wrong[flagged].mean())
    if wrong.any():
        figures["flag_recall"] = 100 * float(flagged[wrong].mean())
    if found.suggested is not None:
        after = np.where(flagged, found.suggested, draw.given)
        figures["left_after_relabelling"] = int((after != draw.true).sum())
    return figures


def _recall_at_precision(score: NDArray[np.float64], wrong: NDArray[np.bool_]) -> list[float]:
    """The largest share of the errors that a cut of the ranking finds with a precision of 0, 1, ..., 100% or more."""
    order = np.argsort(-score, kind="stable")
    found = np.cumsum(wrong[order])
    is_end = np.append(np.diff(score[order]) != 0, True)  # equal scores are cut together
    precision, recall = found[is_end] / (np.flatnonzero(is_end) + 1), found[is_end] / wrong.sum()
    best = [recall[100 * precision >= least - 1e-9].max(initial=0.0) for least in range(101)]
    return [round(100 * float(value), 1) for value in best]


def _ece(p: NDArray[np.float64], wrong: NDArray[np.bool_]) -> float:
    """Mean distance between what is said and what is true, over bins of equal width, weighted by their size."""
    place = np.minimum((p * _BINS).astype(int), _BINS - 1)
    gaps = [abs(p[place == b].mean() - wrong[place == b].mean()) * (place == b).mean() for b in np.unique(place)]
    return float(np.sum(gaps))
