"""Canaries of tags: hold-out examples under bits known to be right and under bits known to be wrong.

The head sees the hold-out at every refresh anyway, so each pair of example and tag can be scored under its own bit (a
negative) and under the other (a positive) at no cost, against directions made from the other fold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sgoif.types import Floats, Ints

__all__ = ["Canaries"]


@dataclass(frozen=True, slots=True)
class Canaries:
    """A table with one row per hold-out example and label tried."""

    holdout_row: Ints  # [M]
    fold: Ints
    label: Ints  # the hold-out label
    assigned_label: Ints  # the label it was tried under
    belief: Floats  # how far the hold-out label is believed, in [0, 1]
    weight: Floats
    signals: Floats  # [M, S], raw, averaged over snapshots; columns as SIGNALS
    worst_anchor: Ints
    num_classes: int

    def __len__(self) -> int:
        return len(self.label)

    @property
    def is_flip(self) -> NDArray[np.bool_]:
        """Which rows carry a wrong label."""
        return np.asarray(self.label != self.assigned_label)
