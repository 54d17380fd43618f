"""What a model says of each example at its last visit, or at one moment after the training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["LAST_COLUMNS", "LastPredictions"]

_EMPTY = {"p_given": np.float32(np.nan), "margin": np.float32(np.nan), "runner_up": np.int32(-1)}
LAST_COLUMNS = tuple(f"{name}_last" for name in _EMPTY)


class LastPredictions:
    """The latest prediction of every row: 12 bytes an example.

    >>> last = LastPredictions()
    >>> last.keep([2, 0], p_given=[0.5, 0.25], margin=[0.0, np.nan], runner_up=[3, 1])
    >>> last.keep([2], p_given=[0.75], margin=[2.0], runner_up=[1])
    >>> {name: column.tolist() for name, column in last.columns(3).items()}
    {'p_given_last': [nan, nan, 0.75], 'margin_last': [nan, nan, 2.0], 'runner_up_last': [-1, -1, 1]}
    """

    def __init__(self) -> None:
        self._columns: dict[str, NDArray[Any]] = {name: np.full(0, empty) for name, empty in _EMPTY.items()}

    def keep(
        self, rows: ArrayLike, p_given: ArrayLike, margin: ArrayLike, runner_up: ArrayLike, usable: ArrayLike = True
    ) -> None:
        """Keep the predictions of some rows; a later one takes the place of an earlier.

        Args:
            rows: which examples, ``[B]``.
            p_given: probability of the given class, ``[B]``.
            margin: its log probability above that of the runner-up, ``[B]``.
            runner_up: the most probable other class, ``[B]``.
            usable: those that count; of these what is not finite is passed over.
        """
        values = {"p_given": np.asarray(p_given), "margin": np.asarray(margin), "runner_up": np.asarray(runner_up)}
        kept = np.isfinite(values["p_given"]) & np.isfinite(values["margin"]) & np.asarray(usable, dtype=bool)
        row = np.asarray(rows, dtype=np.int64)[kept]
        if not len(row):
            return
        self.reserve(int(row.max()) + 1)
        for name, column in self._columns.items():
            column[row] = values[name][kept]

    def reserve(self, num_rows: int) -> None:
        """Make room for rows that will be named."""
        room = len(self._columns["p_given"])
        if num_rows > room:
            more = max(num_rows - room, room)
            for name, column in self._columns.items():
                self._columns[name] = np.concatenate([column, np.full(more, _EMPTY[name])])

    def columns(self, count: int) -> dict[str, NDArray[Any]]:
        """The first ``count`` rows; NaN and -1 where nothing was kept."""
        self.reserve(count)
        return {f"{name}_last": column[:count].copy() for name, column in self._columns.items()}

    def state_dict(self, count: int) -> dict[str, Any]:
        """The first ``count`` rows."""
        return self.columns(count)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from saved rows."""
        self._columns = {name: np.array(state[f"{name}_last"], empty.dtype) for name, empty in _EMPTY.items()}
