"""The one direction ``φ ≈ H⁻¹ g`` of a head with many classes, whose steps cost no product with the curvature.

There ``H = diag(l) ⊗ A`` (:class:`sgoif.linalg.DiagonalKronecker`). With ``A`` by its largest eigenvalues ``λ`` and
vectors ``Q``, and one value ``σ`` for the rest, Richardson's step multiplies each coordinate ``(φQ)_cj`` by a number of
its own, and all of row c that lies outside of ``Q`` by one number. So between two refreshes

    φ = y Qᵀ + keep φ₀ + gain g₀,     φ₀ and g₀: what of φ and g lay outside of Q at the last refresh,

and only ``y [C, r]``, ``keep [C]`` and ``gain [C]`` move. Small eigenvalues hardly matter: Richardson with a leak of
800 steps does not resolve what is 800 times smaller than the largest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sgoif.errors import SgoifError
from sgoif.gradients.contractions import pool_positions
from sgoif.influence.near_outputs import NearOutputs
from sgoif.influence.tracker import DIVERGED
from sgoif.linalg import DiagonalKronecker, LinearOperator, TopEigenpairs, follow_top_eigenpairs
from sgoif.records import BlockShape, GradientRows

__all__ = ["RANK", "PooledPoint", "PooledTracker"]

RANK = 128  # on pretrained features of 1,280 columns, harm then correlates with that of all columns by 0.998


class PooledPoint(NamedTuple):
    """Where the direction stood at one step."""

    inside: Tensor  # y, [C, r]
    keep: Tensor  # [C]
    gain: Tensor  # [C]


class PooledTracker:
    """One anchor's direction at one layer, with the interface of :class:`sgoif.influence.Tracker`.

    ``H`` is that of the last refresh, and of the first observation before there was one.

    Args:
        layer: its name.
        shape: its shape, of one group.
        leak_horizon: steps after which the direction has forgotten its start; None for never.
        device: where it lives.
        dtype: of the direction.
    """

    def __init__(
        self,
        layer: str,
        shape: BlockShape,
        *,
        leak_horizon: float | None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.layer, self.shape, self.leak_horizon = layer, shape, leak_horizon
        rank, like = min(RANK, shape.inputs), dict[str, Any](device=device, dtype=dtype)
        outputs, inputs = shape.outputs, shape.inputs
        self.resets = torch.zeros(1, dtype=torch.int64, device=device)
        self._operator: DiagonalKronecker | None = None
        self._is_based = False
        self._at = PooledPoint(*(torch.zeros(outputs, *more, **like) for more in ((rank,), (), ())))
        self._basis = torch.zeros(inputs, rank, **like)  # Q
        self._inside_rate, self._outside_rate = torch.zeros(outputs, rank, **like), torch.zeros(outputs, **like)  # ρH
        self._step_size = torch.zeros((), **like)  # ρ
        self._start = torch.zeros(outputs, inputs, **like)  # φ₀
        self._goal = torch.zeros(outputs, inputs, **like)  # g₀
        self._inside_goal = torch.zeros(outputs, rank, **like)  # gQ
        self._summed: tuple[Tensor, Tensor, Tensor] | None = None
        self._sizes = torch.zeros(3, outputs, **like)  # |g₀|², g₀·φ₀ and |φ₀|², by row

    def use_operator(self, operator: LinearOperator) -> None:
        """Take a new curvature; it counts from the next refresh on."""
        if not isinstance(operator, DiagonalKronecker):
            raise SgoifError(f"a pooled direction is tracked by a diagonal Kronecker product, got {type(operator)}.")
        self._operator = operator
        if not self._is_based:
            self._rebase(self._goal)

    def retarget(self, gradients: Mapping[str, Tensor]) -> None:
        """Take a new ``g``, and the curvature as it is; some products with ``Q``."""
        goal = gradients[self.layer][0, 0].to(self._goal.dtype)
        if self._is_based:
            self._rebase(goal)
        else:
            self._goal = goal

    def replace_directions(self, columns: Tensor) -> None:
        """Go on from another direction, ``[P, 1]``; some products with ``Q``."""
        goal = torch.addmm(self._goal, self._inside_goal, self._basis.mT) if self._is_based else self._goal
        self._start = columns.to(self._start).mT.reshape(self._start.shape)
        inside, keep, gain = self._at
        self._at = PooledPoint(torch.zeros_like(inside), torch.ones_like(keep), torch.zeros_like(gain))
        self._rebase(goal)

    def _rebase(self, goal: Tensor) -> None:
        assert self._operator is not None
        direction = self.dense(self._at)[0, 0]
        direction = torch.where(direction.isfinite().all(), direction, torch.zeros_like(direction))
        top = follow_top_eigenpairs(self._operator.right[0], RANK, self._basis if self._is_based else None)
        self._basis, self._is_based = top.vectors, True
        self._use_rates(self._operator.left[0], top)
        inside = direction @ top.vectors
        self._start = torch.addmm(direction, inside, top.vectors.mT, alpha=-1)
        self._inside_goal = goal @ top.vectors
        self._goal = torch.addmm(goal, self._inside_goal, top.vectors.mT, alpha=-1)
        pairs = ((self._goal, self._goal), (self._goal, self._start), (self._start, self._start))
        self._sizes = torch.stack([(left * right).sum(1) for left, right in pairs])
        self._summed = None
        self._at = PooledPoint(inside, torch.ones_like(inside[:, 0]), torch.zeros_like(inside[:, 0]))

    def _use_rates(self, outputs: Tensor, top: TopEigenpairs) -> None:
        largest = outputs.max() * top.values.max()
        leak = torch.zeros_like(largest) if self.leak_horizon is None else largest / self.leak_horizon
        self._step_size = (largest + leak).clamp_min(torch.finfo(largest.dtype).tiny).reciprocal()
        self._inside_rate = self._step_size * (outputs[:, None] * top.values + leak)
        self._outside_rate = self._step_size * (outputs * top.rest + leak)

    def advance(self, steps: int = 1) -> tuple[list[PooledPoint], Tensor]:
        """Take Richardson steps towards ``H⁻¹ g``, without host synchronisation.

        A direction that turned non-finite, or ran away, starts again from zero after the last step, is counted in
        :attr:`resets`, and reports an infinite residual, which shuts its gate.

        Returns:
            Where it stood after each step, and the relative residuals ``|g - Hφ| / |g|``, ``[steps, 1]``, each of the
            direction before the step.
        """
        inside, keep, gain = self._at
        step, path, left = self._step_size, [], []
        moved = torch.addcmul(step * self._inside_goal, self._inside_rate, inside, value=-1)  # ρ (g - Hφ), inside of Q
        slower = 1 - self._inside_rate
        for _ in range(steps):
            of_goal, of_start = step - self._outside_rate * gain, -self._outside_rate * keep  # outside: in g₀ and φ₀
            weights = torch.stack([of_goal.square(), 2 * of_goal * of_start, of_start.square()])
            left.append(torch.linalg.vector_norm(moved).square() + (weights * self._sizes).sum().clamp_min(0))
            inside, keep, gain = inside + moved, keep + of_start, gain + of_goal
            path.append(PooledPoint(inside, keep, gain))
            moved.mul_(slower)  # not in `inside`, which is a sum
        tiny = torch.finfo(step.dtype).tiny
        size = (self._inside_goal.square().sum() + self._sizes[0].sum()).sqrt()
        relative = torch.stack(left).sqrt()[:, None] / (step * size).clamp_min(tiny)
        sound = relative < DIVERGED  # a NaN is not
        is_kept = sound.all() & torch.isfinite(inside.sum() + keep.sum() + gain.sum())
        self._at = path[-1] = PooledPoint(*(torch.where(is_kept, part, torch.zeros_like(part)) for part in path[-1]))
        self.resets = self.resets + (~is_kept).to(self.resets.dtype)
        sound[-1] &= is_kept
        return path, torch.where(sound, relative, torch.full_like(relative, torch.inf))

    def dots(self, batches: list[tuple[GradientRows, PooledPoint]]) -> Tensor:
        """``⟨φ, g_i⟩`` and ``⟨g, g_i⟩`` for examples that met the direction at different steps, ``[B, 2]``."""
        pooled = [pool_positions(rows) for rows, _ in batches]
        a, b = (torch.cat(parts) for parts in zip(*pooled))
        sizes = [len(part) for part, _ in pooled]
        within, at_goal, at_start = a @ self._basis, a @ self._goal.mT, a @ self._start.mT  # [B, r], [B, C], [B, C]
        found = []
        for (_, point), *parts in zip(batches, *(part.split(sizes) for part in (b, within, at_goal, at_start))):
            mine, near, goal, start = parts
            met = torch.addcmul(near @ point.inside.mT, start, point.keep).addcmul_(goal, point.gain)
            found.append((met * mine).sum(1))
        plain = at_goal.addmm_(within, self._inside_goal.mT).mul_(b).sum(1)
        return torch.stack([torch.cat(found), plain], 1)

    def dots_near(self, a: Tensor, near: NearOutputs, met: list[tuple[int, PooledPoint]]) -> Tensor:
        """The same, ``[B, 2]``, with gradients at the outputs by their largest entries.

        Args:
            a: the inputs of all examples, ``[B, I]``.
            near: their gradients at the outputs.
            met: how many examples met which point, in order.
        """
        within = a @ self._basis
        at_goal, at_start, at_inside = (
            _at_rows(near.pick(rows), columns)
            for rows, columns in ((self._goal, a), (self._start, a), (self._inside_goal, within))
        )
        goal, start, inside = self._totals
        whole_goal, whole_start = a @ goal, a @ start
        sizes = [count for count, _ in met]
        parts = (*near, within, at_goal, at_start, whole_goal, whole_start)
        found = []
        for (_, point), *mine in zip(met, *(part.split(sizes) for part in parts)):
            columns, values, rest, inner, by_goal, by_start, all_goal, all_start = mine
            some = NearOutputs(columns, values, rest)
            at = _at_rows(some.pick(point.inside), inner) + some.pick(point.keep) * by_start
            # keep and gain hardly differ between outputs: what lies outside of Q is all but flat
            whole = inner @ point.inside.sum(0) + point.keep.mean() * all_start + point.gain.mean() * all_goal
            found.append(some.weigh(at + some.pick(point.gain) * by_goal, whole))
        plain = near.weigh(at_goal + at_inside, whole_goal + within @ inside)
        return torch.stack([torch.cat(found), plain], 1)

    @property
    def _totals(self) -> tuple[Tensor, Tensor, Tensor]:
        """Goal and start outside of ``Q``, and the goal inside, each summed over all outputs; once for each refresh."""
        if self._summed is None:
            self._summed = self._goal.sum(0), self._start.sum(0), self._inside_goal.sum(0)
        return self._summed

    @property
    def step_bytes(self) -> int:
        """What it takes to remember one step."""
        return sum(part.nbytes for part in self._at)

    @property
    def is_ready(self) -> bool:
        """Whether a curvature operator has been given."""
        return self._operator is not None

    @property
    def point(self) -> PooledPoint:
        """Where the direction stands."""
        return self._at

    def dense(self, point: PooledPoint) -> Tensor:
        """The direction at a step since the last refresh, ``[1, 1, C, I]``."""
        outside = point.keep[:, None] * self._start + point.gain[:, None] * self._goal
        return torch.addmm(outside, point.inside, self._basis.mT)[None, None]

    @property
    def directions(self) -> dict[str, Tensor]:
        """``φ`` by layer, ``[1, 1, C, I]``."""
        return {self.layer: self.dense(self._at)}

    def state_dict(self) -> dict[str, Any]:
        """All that later steps depend on, beside the operator."""
        tensors = {name: getattr(self, name).clone() for name in _TENSORS}
        return tensors | {"at": tuple(part.clone() for part in self._at), "is_based": self._is_based}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where another tracker stood; give it its operator afterwards."""
        self._summed = None
        for name in _TENSORS:
            setattr(self, name, state[name].to(getattr(self, name)))
        self._at = PooledPoint(*(part.to(self._start) for part in state["at"]))
        self._is_based = bool(state["is_based"])


def _at_rows(rows: Tensor, inputs: Tensor) -> Tensor:
    """Inner products of each example's rows ``[B, N, I]`` with its inputs ``[B, I]``."""
    return torch.bmm(rows, inputs[:, :, None])[:, :, 0]


_TENSORS = (
    "resets",
    "_basis",
    "_inside_rate",
    "_outside_rate",
    "_step_size",
    "_start",
    "_goal",
    "_inside_goal",
    "_sizes",
)
