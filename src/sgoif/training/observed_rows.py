"""Batches whose curvature waits for the next refresh: nothing uses it before, and one product then serves all of them.

A process keeps its own rows. What all of them saw comes together when the curvature is absorbed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from sgoif.curvature import Curvature, Statistic, reduce_statistics
from sgoif.records import GradientRows
from sgoif.training.scoring_queue import join_rows

__all__ = ["ObservedRows"]


class ObservedRows:
    """Rows of some micro-batches, and statistics of earlier ones."""

    def __init__(self, num_steps: int = 0) -> None:
        self.num_steps = num_steps  # that were observed, here or in a process that took part
        self.nbytes = 0
        self._is_within_step = False
        self._rows: dict[tuple[Any, ...], list[GradientRows]] = {}  # those that can be joined under one key
        self._statistics: list[dict[str, Statistic]] = []

    def add(self, batch: Sequence[GradientRows]) -> None:
        """Keep a micro-batch: its rows at every layer."""
        self.num_steps += not self._is_within_step
        self._is_within_step = True
        for rows in batch:
            key = (rows.layer, rows.inputs.shape[1:], rows.inputs.dtype, rows.output_grads.dtype)
            self._rows.setdefault(key, []).append(rows)
            self.nbytes += rows.inputs.nbytes + rows.output_grads.nbytes

    def end_step(self) -> None:
        """What comes next is of another step."""
        self._is_within_step = False

    def measure(self, curvature: Curvature) -> dict[str, Statistic]:
        """Turn all rows into statistics, which are kept in their place and returned.

        Examples that are not finite are left out.
        """
        parts = self._statistics + [_measure_finite(curvature, join_rows(rows)) for rows in self._rows.values()]
        if not parts:  # a process that joined later has seen none of these steps
            parts = [curvature.measure(_no_rows(curvature))]
        found = reduce_statistics(parts)
        self._statistics, self._rows, self.nbytes = [found], {}, 0
        return found

    def state_dict(self) -> dict[str, Any]:
        """All of it as tensors and numbers."""
        rows = [(rows.layer, rows.inputs, rows.output_grads) for kept in self._rows.values() for rows in kept]
        statistics = [
            {name: (s.tensor, int(s.count), s.reduction, s.is_symmetric) for name, s in part.items()}
            for part in self._statistics
        ]
        return {"rows": rows, "statistics": statistics}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what another has kept, beside what is here."""
        self._statistics += [{name: Statistic(*kept) for name, kept in part.items()} for part in state["statistics"]]
        self._is_within_step = True
        self.add([GradientRows(*kept) for kept in state["rows"]])
        self._is_within_step = False


def _measure_finite(curvature: Curvature, rows: GradientRows) -> dict[str, Statistic]:
    """Measure the examples that are finite, without waiting for the device: the others are zero and do not count."""
    sides = rows.inputs, rows.output_grads
    is_finite = torch.stack([side.flatten(1).sum(1, dtype=curvature.dtype) for side in sides]).isfinite().all(0)
    kept = [torch.where(is_finite[:, None, None, None], side, torch.zeros_like(side)) for side in sides]
    count = is_finite.sum().to(curvature.dtype)
    scale = rows.num_examples / count.clamp_min(1)  # statistics divide by all
    return {
        name: replace(
            statistic,
            tensor=statistic.tensor * scale if statistic.reduction == "mean" else statistic.tensor,
            count=count,
        )
        for name, statistic in curvature.measure([GradientRows(rows.layer, *kept)]).items()
    }


def _no_rows(curvature: Curvature) -> list[GradientRows]:
    like: dict[str, Any] = {"device": curvature.device, "dtype": curvature.dtype}
    return [
        GradientRows(
            name,
            torch.zeros(0, shape.groups, shape.inputs, 1, **like),
            torch.zeros(0, shape.groups, shape.outputs, 1, **like),
        )
        for name, shape in curvature.shapes.items()
    ]
