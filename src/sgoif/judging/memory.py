"""What training has done to predictions of the labels it saw, and how that is taken off again.

A model is surer of labels that it was trained on, wrong ones too. Of held-out rows it has not seen the labels, and
apart from that they are alike: so the log odds of the given class are moved, quantile by quantile, to where those of
held-out rows lie. The order among training rows stays.

A model that contradicts fewer of its training labels than are wrong has learnt them by heart; then its last word has no
order any more, and that of the mean loss over training takes its place.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sgoif.types import Floats

__all__ = ["OddsMap", "match_odds", "match_order"]

_KNOTS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)  # quantiles; beyond them the shift stays as it is
_FINE = 200  # quantiles of an order that has another scale


@dataclass(frozen=True, slots=True)
class OddsMap:
    """A line through points, rising everywhere, with the slope of 1 beyond them."""

    x: Floats
    y: Floats

    def __call__(self, values: Floats) -> Floats:
        """Move values, ``[n]``."""
        shift = self.y - self.x
        return np.asarray(values + np.interp(values, self.x, shift))


def match_odds(seen: Floats, unseen: Floats) -> OddsMap:
    """From log odds of labels that were trained on, ``[N]``, to those of held-out ones, ``[m]``; never upwards.

    >>> moved = match_odds(np.arange(100.0), np.arange(100.0) - 5)(np.array([50.0]))
    >>> round(float(moved[0]), 6)
    45.0
    """
    x, y = _quantiles(seen, _KNOTS), _quantiles(unseen, _KNOTS)
    return OddsMap(x, np.minimum(x, y))


def match_order(order: Floats, unseen: Floats) -> OddsMap:
    """From values that order labels, the likeliest wrong ones lowest, to log odds of held-out ones.

    >>> moved = match_order(np.linspace(0, 1, 1000), np.linspace(-8, 8, 500))(np.array([0.0, 0.25, 1.0]))
    >>> moved.round(1).tolist()
    [-8.0, -4.0, 8.0]
    """
    knots = (np.arange(_FINE) + 0.5) / _FINE
    x, y = _quantiles(order, knots), _quantiles(unseen, knots)
    keep = np.append(True, np.diff(x) > 0)  # equal values have one place
    return OddsMap(x[keep], y[keep])


def _quantiles(values: Floats, at: tuple[float, ...] | NDArray[np.float64]) -> Floats:
    return np.asarray(np.quantile(values, at))
