"""Weights of examples while the training goes on: a table by row of the recorder, renewed at few points."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["RENEWED_AT", "WeightTable", "Weights"]

RENEWED_AT = (0.5, 0.6, 0.7, 0.8, 0.9)  # shares of the planned steps


class Weights(NamedTuple):
    """Weights as of now."""

    values: NDArray[np.float32]  # by row of the recorder, [N]
    gains: NDArray[np.float64]  # of the classes, [C], as they were estimated before there were weights


class WeightTable:
    """Weights by row; 1 for rows that it does not hold.

    >>> table = WeightTable(planned_steps=100)
    >>> table.is_due(49), table.is_due(50)
    (False, True)
    >>> table.renew(Weights(np.array([0.5, 1.0], np.float32), np.ones(2)), step=50)
    >>> table.at(np.array([0, 7, -1])).tolist(), table.is_due(55)
    ([0.5, 1.0, 1.0], False)
    """

    def __init__(self, planned_steps: int) -> None:
        self.planned_steps = planned_steps
        self.values = np.ones(0, np.float32)
        self.gains: NDArray[np.float64] | None = None  # until there were weights
        self.renewed_at = -1  # step
        self.is_tried = True  # whether a step was seen since the values changed

    def is_due(self, step: int) -> bool:
        """Whether a point lies between the last renewal and this step."""
        return any(self.renewed_at < share * self.planned_steps <= step for share in RENEWED_AT)

    def renew(self, weights: Weights | None, step: int) -> None:
        """Take new weights; None keeps those that there are until the next point."""
        self.renewed_at = step
        if weights is not None:
            (self.values, self.gains), self.is_tried = weights, False

    def at(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Weights of some rows, -1 for what is not known."""
        is_held = (rows >= 0) & (rows < len(self.values))
        found = np.ones(len(rows), np.float32)
        found[is_held] = self.values[rows[is_held]]
        return found

    def state_dict(self) -> dict[str, Any]:
        gains = None if self.gains is None else self.gains.copy()
        return {"values": self.values.copy(), "gains": gains, "renewed_at": self.renewed_at}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.values, self.renewed_at = np.array(state["values"], np.float32), int(state["renewed_at"])
        self.gains = None if state["gains"] is None else np.array(state["gains"])
        self.is_tried = self.gains is None
