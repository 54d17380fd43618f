"""Directions that a solver improves at refreshes: all of them where none are tracked, or tracked ones that need it.

A tracked direction needs it when its confidence is low: always, or only if what was scored by it since the last refresh
gives a reason. ``large``: some score was above the running 99th percentile. ``uncertain``: the empirical-Bernstein
interval of the mean score contains zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sgoif.distributed import Peers
from sgoif.influence import GateReading, PooledTracker, Tracker
from sgoif.linalg import (
    ConjugateGradient,
    LinearOperator,
    Neumann,
    NystromPreconditioner,
    Solver,
    flatten,
    unflatten,
)
from sgoif.records import BlockShape
from sgoif.training.method import Method

__all__ = ["Refinement", "ScoreRecord"]

_QUANTILE = 0.99  # of the sizes of scores, above which one is large
_KEPT = 0.9  # of that quantile, as it runs along
_MISSES = 0.05  # share of intervals that may miss the mean


class Refinement:
    """What a solver finds at refreshes.

    Args:
        method: the switches.
        num_anchors: ``K``.
        device: where the directions live.
        dtype: of the directions.
    """

    def __init__(self, method: Method, num_anchors: int, *, device: torch.device, dtype: torch.dtype) -> None:
        self.method = method
        self.directions: dict[str, Tensor] | None = None  # found by the solver; None where φ is tracked
        self.residual = torch.zeros(num_anchors, device=device, dtype=dtype)  # what the solver left, relative
        self.count = torch.zeros(num_anchors, dtype=torch.int64, device=device)  # of tracked directions, how often
        # a few products each, beside those of the steps between two refreshes
        sketch = NystromPreconditioner(rank=method.sketch_rank) if method.sketch_rank else None
        self._cg: Solver[Any] = ConjugateGradient(preconditioner=sketch, max_iterations=10)
        solvers: dict[str, Solver[Any]] = {"cg": self._cg, "neumann": Neumann(max_order=20, required_fall=0.01)}
        self._solver = solvers.get(method.solver)
        needs_scores = method.refine_below is not None and method.refine_if != "low"
        self._scores = ScoreRecord(num_anchors, device=device, dtype=dtype) if needs_scores else None

    def note(self, scores: Tensor) -> None:
        """Look at scores by tracked directions, ``[B, K]``, without host synchronisation."""
        if self._scores is not None:
            self._scores.add(scores)

    def renew(
        self,
        operator: LinearOperator,
        gradients: Mapping[str, Tensor],
        tracker: Tracker | PooledTracker,
        reading: GateReading | None,
        peers: Peers,
        shapes: Mapping[str, BlockShape],
    ) -> None:
        """At a refresh: solve for the directions where they are not tracked, and for tracked ones that need it."""
        solver, below = self._solver, self.method.refine_below
        if solver is not None:
            start = None if self.directions is None else flatten(self.directions, shapes)
            found = solver.solve(solver.prepare(operator), flatten(gradients, shapes), start)
            self.directions = unflatten(found.value, shapes)
            self.residual = found.stats.relative_residual
        elif below is not None:
            scores, self._scores = self._scores, None if self._scores is None else self._scores.begin_again()
            if reading is not None:
                is_due = reading.confidence < below
                is_due = is_due if scores is None else is_due & scores.gives_reason(self.method.refine_if, peers)
                tracked = flatten(tracker.directions, shapes)
                found = self._cg.solve(self._cg.prepare(operator), flatten(gradients, shapes), tracked)
                self.count = self.count + is_due.to(self.count.dtype)
                tracker.replace_directions(torch.where(is_due, found.value, tracked))

    def state_dict(self) -> dict[str, Any]:
        """All that later refreshes depend on."""
        return {
            "directions": self.directions,
            "residual": self.residual.clone(),
            "count": self.count.clone(),
            "scores": None if self._scores is None else self._scores.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where another stood."""
        self.directions = state["directions"]
        self.residual, self.count = state["residual"].to(self.residual), state["count"].to(self.count)
        if self._scores is not None and state["scores"] is not None:
            self._scores.load_state_dict(state["scores"])


class ScoreRecord:
    """What was scored by each direction since the last refresh: moments, extremes, and which had a large score.

    >>> record = ScoreRecord(2)
    >>> record.add(torch.tensor([[1.0, 5.0], [1.0, -5.0]]))
    >>> record.half_width().isfinite(), record.mean
    (tensor([True, True]), tensor([1., 0.]))
    """

    def __init__(
        self, num_anchors: int, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        self._sums = torch.zeros(3, num_anchors, device=device, dtype=dtype)  # of 1, x and x²
        self._ends = torch.full((2, num_anchors), float("-inf"), device=device, dtype=dtype)  # largest of x and of -x
        self._is_large = torch.zeros(num_anchors, dtype=torch.bool, device=device)
        self._level = torch.full((), float("inf"), device=device, dtype=dtype)  # the running quantile

    def begin_again(self) -> ScoreRecord:
        """An empty record that knows what is large."""
        fresh = ScoreRecord(self._sums.shape[1], device=self._sums.device, dtype=self._sums.dtype)
        fresh._level = self._level
        return fresh

    def add(self, scores: Tensor) -> None:
        """Add the scores of a batch, ``[B, K]``; those that are no numbers count as zero."""
        x = torch.nan_to_num(scores.to(self._sums.dtype), nan=0.0, posinf=0.0, neginf=0.0)
        self._sums = self._sums + torch.stack([torch.ones_like(x), x, x.square()]).sum(1)
        self._ends = self._ends.maximum(torch.stack([x.amax(0), -x.amin(0)]))
        sizes = x.abs()
        self._is_large = self._is_large | (sizes > self._level).any(0)
        found = torch.quantile(sizes.flatten(), _QUANTILE)
        self._level = torch.where(self._level.isinf(), found, _KEPT * self._level + (1 - _KEPT) * found)

    @property
    def mean(self) -> Tensor:
        """The mean score by direction, ``[K]``."""
        return self._sums[1] / self._sums[0].clamp_min(1)

    def half_width(self) -> Tensor:
        """Of the empirical-Bernstein interval of the mean, ``sqrt(2 V L / n) + 3 R L / n``, ``[K]``."""
        n, log_term = self._sums[0].clamp_min(1), math.log(3 / _MISSES)
        variance = (self._sums[2] / n - self.mean.square()).clamp_min(0)
        spread = torch.nan_to_num(self._ends.sum(0), neginf=float("inf"))  # of nothing, everything
        return (2 * variance * log_term / n).sqrt() + 3 * spread * log_term / n

    def gives_reason(self, kind: str, peers: Peers) -> Tensor:
        """Which directions are to be refined, ``[K]``, by what all processes have scored."""
        if not peers.is_alone:
            (self._sums,) = peers.all_reduce_sum([self._sums])
            largest = torch.cat([self._ends.flatten(), self._is_large.to(self._ends.dtype)]).tolist()
            *ends, large = torch.tensor(peers.all_reduce_max(largest)).to(self._ends).unflatten(0, (3, -1))
            self._ends, self._is_large = torch.stack(ends), large > 0
        return self._is_large if kind == "large" else self.half_width() >= self.mean.abs()

    def state_dict(self) -> dict[str, Tensor]:
        return {"sums": self._sums, "ends": self._ends, "is_large": self._is_large, "level": self._level}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._sums, self._ends = state["sums"].to(self._sums), state["ends"].to(self._ends)
        self._is_large, self._level = state["is_large"].to(self._is_large), state["level"].to(self._level)
