"""The interface of a running curvature estimate, and the bookkeeping that every backend shares.

``H`` is a damped surrogate of the curvature of the **mean** loss, block-diagonal over layers. A backend says what it
measures on a batch, what it keeps, and which structured operator that makes; this class does the rest: exponential
averages with bias correction, batches with NaN in them, damping, factorising once per change, counters and state.

An update has two halves so that collectives can stand between them: ``measure`` looks at the local batch, ``absorb``
takes in what all processes saw. Neither waits for the device unless the backend says so.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor

from sgoif.curvature.statistic import Statistic
from sgoif.errors import CurvatureError
from sgoif.linalg import BlockDiagonal, Damped, Direct, LinearOperator, PreparedDirect, Solution, flatten, unflatten
from sgoif.records import BlockShape, GradientRows

__all__ = ["Curvature", "CurvatureCounters", "LayerState"]

LayerState = dict[str, Tensor]

_NO_CURVATURE = 1e-30  # below this mean eigenvalue, 1/λ would leave float32


@dataclass(frozen=True, slots=True)
class CurvatureCounters:
    """How much work an estimate has done."""

    observations: int = 0
    factorisations: int = 0
    products: int = 0  # with a layer's operator, inside `solve`
    solves: int = 0


class Curvature(ABC):
    """A running estimate of curvature over named layers.

    **A layer without gradients.** Where the mean eigenvalue is zero (never observed, frozen, dead), automatic damping
    is 1, so that ``H`` is the identity there and every solve is finite; per-example gradients vanish there, so no score
    depends on it.

    >>> from sgoif.curvature import create
    >>> curvature = create("diagonal", {"fc": BlockShape(1, 1, 2, False)}, damping=1.0)
    >>> curvature.observe([GradientRows("fc", torch.tensor([[[[1.0], [2.0]]]]), torch.ones(1, 1, 1, 1))])
    >>> curvature.operator("fc").diagonal()
    tensor([2., 5.])

    Args:
        shapes: the layers, in the order in which operators stack them.
        decay: of the exponential averages, per observation.
        damping: ``"auto"`` for ``relative_damping`` times the mean eigenvalue, or a number to use as it is.
        relative_damping: the factor of the automatic rule; 0.1 as in the paper's K-FAC.
        max_bytes: how much memory per-example gradients may take where they must be written out.
        device: where the state lives.
        dtype: of the state; float32 or float64. Gradients are converted to it before anything is summed.
    """

    def __init__(
        self,
        shapes: Mapping[str, BlockShape],
        *,
        decay: float = 0.95,
        damping: float | Literal["auto"] = "auto",
        relative_damping: float = 0.1,
        max_bytes: int = 64 * 2**20,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if not shapes:
            raise CurvatureError("curvature needs at least one layer, got none; pass {layer name: BlockShape}.")
        if not 0 <= decay < 1:
            raise CurvatureError(f"decay must lie in [0, 1), got {decay}; 0 keeps the last batch only.")
        if damping != "auto" and not (isinstance(damping, int | float) and damping > 0):
            raise CurvatureError(f"damping must be 'auto' or a positive number, got {damping!r}.")
        if not relative_damping > 0:
            raise CurvatureError(f"relative_damping must be positive, got {relative_damping}.")
        if dtype not in (torch.float32, torch.float64):
            raise CurvatureError(f"dtype must be float32 or float64, got {dtype}; averages need the digits.")
        self.shapes = dict(shapes)
        self.decay, self.relative_damping, self.max_bytes = decay, relative_damping, max_bytes
        self.fixed_damping: float | None = None if damping == "auto" else float(damping)
        self.device, self.dtype = torch.device(device), dtype
        self.absorbed, self.kept = 1, decay  # observations taken in together, and how much of the averages they leave
        self._counters = CurvatureCounters()
        self._prepared: dict[str, PreparedDirect] = {}
        self._state = {layer: self._fresh_state(shape) for layer, shape in self.shapes.items()}

    # What a backend declares.

    @abstractmethod
    def initial_state(self, shape: BlockShape) -> LayerState:
        """Return a layer's state before any observation."""

    @abstractmethod
    def measure_layer(self, rows: GradientRows) -> dict[str, Statistic]:
        """Return what one batch says about one layer, by statistic name."""

    @abstractmethod
    def undamped_operator(self, state: LayerState) -> LinearOperator:
        """Return the estimate itself, without damping."""

    def absorb_layer(self, state: LayerState, statistics: Mapping[str, Statistic], ok: Tensor) -> LayerState:
        """Return the next state; by default each statistic is averaged into the state entry of its name.

        Where ``ok`` is false the result must be the old state.
        """
        return {name: self.average(state[name], statistic.tensor, ok) for name, statistic in statistics.items()}

    def damped_operator(self, state: LayerState) -> LinearOperator:
        """Return the operator that solves use; by default ``estimate + λI``."""
        return Damped(self.undamped_operator(state), self.damping_amounts(state)["additive"])

    def damping_amounts(self, state: LayerState) -> dict[str, Tensor]:
        """Return what is added and where; by default one ``λ``, automatic from the mean eigenvalue."""
        return {"additive": self.automatic(self.undamped_operator(state).diagonal().mean())}

    # What everybody uses.

    def measure(self, rows: Iterable[GradientRows]) -> dict[str, Statistic]:
        """Return the local batch's statistics under ``"layer/name"``, changing nothing.

        Raises:
            CurvatureError: a layer is unknown, comes twice, or has another shape than declared.
        """
        found: dict[str, Statistic] = {}
        seen: set[str] = set()
        for row in rows:
            self._check_rows(row, seen)
            seen.add(row.layer)
            found.update({f"{row.layer}/{name}": value for name, value in self.measure_layer(row).items()})
        return found

    def absorb(self, statistics: Mapping[str, Statistic], observations: int = 1) -> None:
        """Take in statistics, already combined over processes.

        Those of several observations taken together count as much as one by one: the averages keep
        ``decay ** observations`` of what they held.

        A layer whose statistic is not finite, or is of no example, keeps its old state, by mask, and the event is
        counted on the device: ``skipped`` in its state.
        """
        known = {f"{layer}/{name}" for layer, state in self._state.items() for name in state}
        if not statistics.keys() <= known:
            raise CurvatureError(
                f"statistics {sorted(statistics.keys() - known)} are unknown to this {type(self).__name__}; "
                f"measure them with the backend that absorbs them."
            )
        self.absorbed, self.kept = observations, self.decay**observations
        self._counters = replace(self._counters, observations=self._counters.observations + observations)
        for layer, state in self._state.items():
            mine = {name: statistics[f"{layer}/{name}"] for name in state if f"{layer}/{name}" in statistics}
            counts = [statistic.count for statistic in mine.values()]
            if not mine or any(isinstance(count, int) and count == 0 for count in counts):
                continue
            # one pass: the sum of finite numbers overflows far beyond any curvature
            ok = torch.stack([statistic.tensor.sum() for statistic in mine.values()]).isfinite().all()
            for count in counts:
                ok = ok & (count > 0) if isinstance(count, Tensor) else ok
            state.update(self.absorb_layer(state, mine, ok))
            state["weight"] = self.average(state["weight"], torch.ones_like(state["weight"]), ok)
            state["skipped"] = state["skipped"] + (~ok).long()
        self._prepared.clear()

    def observe(self, rows: Iterable[GradientRows]) -> None:
        """Measure and absorb at once, for one process."""
        self.absorb(self.measure(rows))

    def operator(self, layer: str | None = None, *, undamped: bool = False) -> LinearOperator:
        """Return ``H`` of one layer, or of all in the order of ``shapes``; the damped matrix unless asked otherwise.

        The operator is a snapshot: later observations do not change it.

        Raises:
            CurvatureError: the layer is unknown.
        """
        if layer is not None:
            state = self._layer_state(layer)
            return self.undamped_operator(state) if undamped else self.damped_operator(state)
        blocks = tuple(self.operator(name, undamped=undamped) for name in self.shapes)
        return blocks[0] if len(blocks) == 1 else BlockDiagonal(blocks)

    def solve(self, rhs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return ``H⁻¹ rhs`` by direct solves, ``{layer: [K, G, O, I]}`` in and out; a column that fails is zero.

        A layer's factorisation is made at its first solve after an observation (that may wait for the device) and kept.

        Raises:
            CurvatureError: a layer is unknown.
            LinalgError: a block has the wrong shape.
        """
        solutions = self.solutions(rhs)
        return {
            layer: unflatten(solution.value, {layer: self.shapes[layer]})[layer]
            for layer, solution in solutions.items()
        }

    def solutions(self, rhs: Mapping[str, Tensor]) -> dict[str, Solution]:
        """Solve as :meth:`solve` does and return columns ``[P, K]`` with a status per column, layer by layer."""
        found = {
            layer: Direct().solve(self.factorise(layer), flatten({layer: block}, {layer: self.shapes[layer]}))
            for layer, block in rhs.items()
        }
        products = self._counters.products + sum(solution.stats.products for solution in found.values())
        self._counters = replace(self._counters, solves=self._counters.solves + 1, products=products)
        return found

    def factorise(self, layer: str) -> PreparedDirect:
        """Return a layer's factorised operator, made when first asked for after an observation (may wait), and kept.

        Raises:
            CurvatureError: the layer is unknown.
        """
        state = self._layer_state(layer)
        if layer not in self._prepared:
            self._prepared[layer] = Direct().prepare(self.damped_operator(state))
            self._counters = replace(self._counters, factorisations=self._counters.factorisations + 1)
        return self._prepared[layer]

    @property
    def counters(self) -> CurvatureCounters:
        """Return what this estimate has done so far."""
        return self._counters

    def state_dict(self) -> dict[str, Any]:
        """Return all that later behaviour depends on: tensors under ``"layer/name"``, and the counters as integers."""
        tensors = {f"{layer}/{name}": t.clone() for layer, state in self._state.items() for name, t in state.items()}
        return {"tensors": tensors, "counters": asdict(self._counters)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue exactly where another estimate with the same layers and settings stood.

        Raises:
            CurvatureError: tensors are missing, unknown, or of another shape or dtype.
        """
        tensors = state_dict["tensors"]
        needed = {f"{layer}/{name}": t for layer, state in self._state.items() for name, t in state.items()}
        wrong = list(needed.keys() ^ tensors.keys())
        wrong += [
            key
            for key in needed.keys() & tensors.keys()
            if (needed[key].shape, needed[key].dtype) != (tensors[key].shape, tensors[key].dtype)
        ]
        if wrong:
            raise CurvatureError(
                f"the state does not fit this {type(self).__name__}: {sorted(wrong)} are missing, unknown or "
                f"of another shape or dtype; build the curvature with the layers and settings of the run that saved it."
            )
        for layer, state in self._state.items():
            for name, old in state.items():
                state[name] = tensors[f"{layer}/{name}"].to(old).clone()
        self._counters = CurvatureCounters(
            **{field.name: int(state_dict["counters"][field.name]) for field in fields(CurvatureCounters)}
        )
        self._prepared.clear()

    # What backends use.

    def average(self, old: Tensor, new: Tensor, ok: Tensor) -> Tensor:
        """Return the exponential average, or ``old`` where ``ok`` is false."""
        return torch.where(ok, torch.lerp(old, new.to(old.dtype), 1 - self.kept), old)

    def corrected(self, state: LayerState, name: str) -> Tensor:
        """Return a state entry over the weight it has gathered: the bias correction ``1 - decay^t``; 0 before any."""
        weight = state["weight"]
        return state[name] / torch.where(weight > 0, weight, torch.ones_like(weight))

    def automatic(self, mean_eigenvalue: Tensor) -> Tensor:
        """Return ``λ``: fixed, or relative to the mean eigenvalue, or 1 where there is no curvature at all."""
        if self.fixed_damping is not None:
            return torch.full_like(mean_eigenvalue, self.fixed_damping)
        seen = mean_eigenvalue > _NO_CURVATURE
        return torch.where(seen, self.relative_damping * mean_eigenvalue, torch.ones_like(mean_eigenvalue))

    def _fresh_state(self, shape: BlockShape) -> LayerState:
        weight = torch.zeros((), dtype=self.dtype, device=self.device)
        skipped = torch.zeros((), dtype=torch.int64, device=self.device)
        return {**self.initial_state(shape), "weight": weight, "skipped": skipped}

    def _layer_state(self, layer: str) -> LayerState:
        if layer not in self._state:
            raise CurvatureError(f"layer {layer!r} is unknown; this curvature covers {list(self.shapes)}.")
        return self._state[layer]

    def _check_rows(self, row: GradientRows, seen: set[str]) -> None:
        self._layer_state(row.layer)
        if row.layer in seen:
            raise CurvatureError(
                f"layer {row.layer!r} came twice in one batch; join its calls along positions, or measure "
                f"micro-batches apart and combine them with reduce_statistics."
            )
        shape, a, b = self.shapes[row.layer], row.inputs.shape, row.output_grads.shape
        ok = len(a) == len(b) == 4 and a[0] == b[0] and a[3] == b[3]
        if not ok or (a[1], b[2], a[2]) != shape.dims or b[1] != shape.groups:
            raise CurvatureError(
                f"layer {row.layer!r} has shape {shape.dims}, but got inputs {tuple(a)} and output gradients "
                f"{tuple(b)}; needed are [B, G, I, T] and [B, G, O, T]."
            )
