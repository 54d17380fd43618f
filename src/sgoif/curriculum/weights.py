"""How much each example should count while the training goes on: less, the likelier its label is wrong.

An example keeps the probability that its label is right, ``1 - p_mislabeled``. The weights of a class together are made
to count as many as are truly of it, as far as one can tell: else a class that noise has emptied would be learnt as a
rare one, though it is not. How many that is must be estimated once, before weights have changed what the model thinks:
a class that lost weight is believed less, would lose more, and be gone in the end.

Nobody falls below a floor: what counts for nothing cannot win its place back, and no score could be freed of its
weight.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SgoifError

__all__ = ["FLOOR", "class_gains", "draw_by_weight", "example_weights"]

FLOOR = 0.02
MOST_SHARED = 4.0  # times what a class kept, or a part of it: one that kept next to nothing must not drown the others

Floats = NDArray[np.floating]
Ints = NDArray[np.integer]


def class_gains(p_mislabeled: Floats, given: Ints, suggested: Ints) -> NDArray[np.float64]:
    """How many examples are truly of a class, over those that were given it, ``[C]``; 1 for a class nobody was given.

    Args:
        p_mislabeled: one per example; NaN where it was not judged, which counts as right.
        given: its class, -1 where it has none.
        suggested: the class that it may actually be of, -1 where that is not known.

    Two examples of class 0, one of them actually of class 1, and one of class 1:

    >>> class_gains(np.array([0.0, 1.0, 0.0]), np.array([0, 0, 1]), np.array([0, 1, 1])).tolist()
    [0.5, 2.0]
    """
    has_class = given >= 0
    p, given, suggested = _known(p_mislabeled)[has_class], given[has_class], suggested[has_class]
    truly = np.where(suggested >= 0, suggested, given)
    count = int(max(given.max(initial=-1), truly.max(initial=-1))) + 1
    were_given = np.bincount(given, minlength=count)
    are_of_it = np.bincount(given, weights=1 - p, minlength=count) + np.bincount(truly, weights=p, minlength=count)
    return np.where(were_given > 0, are_of_it / np.maximum(were_given, 1), 1.0)


def example_weights(p_mislabeled: Floats, given: Ints, gains: Floats, *, floor: float = FLOOR) -> NDArray[np.float32]:
    """Weigh examples, ``[N]``, from ``floor`` to 1, the weight of the one that counts the most.

    Args:
        p_mislabeled: as for :func:`class_gains`.
        given: the same.
        gains: from :func:`class_gains`; classes beyond its end gain nothing.
        floor: the least weight, above 0.

    >>> weights = example_weights(np.array([0.0, 1.0, 0.0]), np.array([0, 0, 1]), np.array([0.5, 2.0]))
    >>> [round(float(weight), 2) for weight in weights]
    [0.49, 0.02, 1.0]
    """
    if not 0 < floor <= 1:
        raise SgoifError(f"floor must be above 0 and at most 1, got {floor}.")
    kept = np.maximum(1 - _known(p_mislabeled), floor)
    weights = kept * _shares(kept, given, gains)[given]
    return np.asarray(np.clip(weights / max(weights.max(initial=0.0), floor), floor, 1.0), np.float32)


def _shares(kept: Floats, given: Ints, gains: Floats) -> Floats:
    """What brings the weights of each class to their sum; the last entry is for examples without a class."""
    has_class = given >= 0
    own = np.bincount(given[has_class], weights=kept[has_class], minlength=len(gains))
    due = np.bincount(given[has_class], minlength=len(gains)).astype(np.float64)
    due[: len(gains)] *= gains
    return np.append(np.clip(due / np.maximum(own, 1e-12), 1 / MOST_SHARED, MOST_SHARED), 1.0)


def _known(p_mislabeled: Floats) -> NDArray[np.float64]:
    return np.nan_to_num(np.asarray(p_mislabeled, np.float64), nan=0.0).clip(0, 1)


def draw_by_weight(weights: Floats, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw as many positions as there are weights, each in proportion to its own, in random order.

    Systematic: an example that deserves 1.3 draws comes once or twice, and where all weigh the same each comes once, as
    in any shuffled epoch. One pass, but for the shuffling.

    >>> sorted(draw_by_weight(np.full(4, 0.3), np.random.default_rng(0)).tolist())
    [0, 1, 2, 3]
    """
    if not len(weights):
        return np.zeros(0, np.int64)
    ends = np.cumsum(weights, dtype=np.float64)
    places = (np.arange(len(ends)) + rng.random()) * (ends[-1] / len(ends))
    drawn = np.minimum(np.searchsorted(ends, places, side="right"), len(ends) - 1)
    return np.asarray(rng.permutation(drawn), np.int64)
