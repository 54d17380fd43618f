"""How a ranking comes about: what it finds epoch by epoch, and how much of it stays from one epoch to the next.

*Instant* values are those of one epoch's visits; *accumulated* ones are the weighted mean of all visits so far, which
is what a user would see had the training stopped there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.agreement import spearman
from benchmarks.metrics import average_precision, top_count

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]


def by_epoch(
    epochs: NDArray[np.integer[Any]],
    score: Callable[[NDArray[np.bool_]], Floats],
    wrong: NDArray[np.bool_],
) -> dict[str, Any]:
    """Report average precision in percent by epoch, and how the ranking persists over the second half of the epochs.

    Args:
        epochs: Of every visit.
        score: Suspicion of every example from the visits that a mask lets through.
        wrong: Which examples are wrong.
    """
    found: dict[str, Any] = {}
    for name, seen in (("instant", np.equal), ("accumulated", np.less_equal)):
        scores = [score(seen(epochs, epoch)) for epoch in range(int(epochs.max()) + 1)]
        found[f"{name} ap"] = [round(100 * average_precision(values, wrong), 2) for values in scores]
        found[name] = persistence(scores[len(scores) // 2 :]) if len(scores) > 1 else None
    return found


def persistence(scores: Sequence[Floats]) -> dict[str, float]:
    """Compare each ranking with the next: over all examples, and over the first percent; means over the pairs."""
    pairs = list(itertools.pairwise(scores))
    if not pairs:
        return {}
    tops = [(top_rows(before), top_rows(after)) for before, after in pairs]
    unions = [np.union1d(*both) for both in tops]
    return {
        "spearman": float(np.mean([spearman(before[:, None], after[:, None])[0] for before, after in pairs])),
        "jaccard@1%": float(np.mean([jaccard(*both) for both in tops])),
        "tau@1%": float(np.mean([kendall(a[rows], b[rows]) for (a, b), rows in zip(pairs, unions, strict=True)])),
    }


def top_rows(scores: Floats, share: float = 0.01) -> Rows:
    """List the most suspicious examples; of equal ones those that come first."""
    return np.argsort(-scores, kind="stable")[: top_count(share, len(scores))]


def jaccard(first: Rows, second: Rows) -> float:
    """Compute the share of two lists' members that both have.

    >>> jaccard(np.array([1, 2]), np.array([2, 3])) == 1 / 3
    True
    """
    return len(np.intersect1d(first, second)) / len(np.union1d(first, second))


def kendall(first: Floats, second: Floats) -> float:
    """Compute Kendall's tau-b from all pairs: for lists of a few hundred.

    >>> kendall(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0])) == 1 / 3
    True
    """
    signs = [np.sign(values[:, None] - values[None, :]) for values in (first, second)]
    sizes = [float(np.square(sign).sum()) for sign in signs]
    return float((signs[0] * signs[1]).sum() / np.sqrt(sizes[0] * sizes[1])) if all(sizes) else 0.0
