"""What a judgement of training labels is worth, held against the truth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.metrics import average_precision, best_other

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a judge says of the training labels."""

    score: Floats  # [N], the order: high where a label is suspicious; NaN, ranked last, where it says nothing
    flags: NDArray[np.bool_]  # [N]
    total: float | None  # how many are wrong; None: it cannot tell
    low: float | None  # the range of that number
    high: float | None
    seconds: float


def measure(found: Judgement, given: Labels, clean: Labels) -> dict[str, Any]:
    """All figures of one judgement; None where a figure has no meaning (no errors, no total)."""
    wrong = given != clean
    return {
        "ap": precision(found.score, wrong),
        "flags": int(found.flags.sum()),
        "right": int((found.flags & wrong).sum()),
        "total": found.total,
        "low": found.low,
        "high": found.high,
        "holds": _holds(found, int(wrong.sum())),
        "seconds": round(found.seconds, 2),
    }


def _holds(found: Judgement, errors: int) -> bool | None:
    """Whether the range has the truth in it; None without one."""
    return None if found.low is None or found.high is None else found.low <= errors <= found.high


def precision(score: Floats, wrong: NDArray[np.bool_]) -> float | None:
    """Average precision in percent; what has no score is the least suspicious."""
    if not wrong.any():
        return None
    known = np.isfinite(score)
    least = score[known].min() - 1 if known.any() else 0.0
    return 100 * average_precision(np.where(known, score, least), wrong)


def free_signals(record: Mapping[str, NDArray[Any]]) -> dict[str, Floats]:
    """Scores that the same training and its audit have at hand without judging anything."""
    return {
        "watch margin": -record["watch_margin"],
        "watch loss": record["watch_loss"],
        "audit margin": -record["audit_margin"],
        "audit loss": record["audit_loss"],
    }


def mean_signals(mean: Floats, given: Labels) -> dict[str, Floats]:
    """The same of the plain mean of log probabilities over visits, ``[N, C]``."""
    own = mean[np.arange(len(given)), given]
    return {"mean probability": -own, "mean margin": best_other(mean, given) - own}
