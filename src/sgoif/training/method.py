"""How influence is estimated while a model trains: the switches, checked when they are set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, get_args

from sgoif.errors import SgoifError
from sgoif.influence import GateSettings, Weighting

__all__ = ["Method"]

_SOLVERS = ("richardson", "direct", "neumann", "cg")


@dataclass(frozen=True, slots=True)
class Method:
    """How influence is estimated: every component is one switch.

    Attributes:
        curvature: ``"kfac"``, ``"diagonal"``, ``"fisher"``, ``"lowrank"`` or ``"identity"``.
        curvature_settings: keyword arguments of that backend. If left out, K-FAC is damped more where only the head
            learns.
        solver: ``"richardson"`` tracks the directions step by step. The others solve at each refresh: ``"direct"``,
            ``"neumann"`` by a series whose order adapts, ``"cg"`` by conjugate gradients preconditioned by a sketch;
            the last two start from what they found before, and the gate sees what is left of the residual.
        refine_below: tracked directions whose confidence is below it are refined at a refresh, by ten products of
            preconditioned conjugate gradients; never by default.
        leak_horizon: steps after which a tracked direction has forgotten its start; None for never.
        gate: name of a mode, or :class:`sgoif.influence.GateSettings`.
        weighting: of the anchors: ``"equal"`` or ``"confidence"``.
        temperature: bends standardised scores, ``tanh(x / temperature)``, for a single visit to count less; never by
            default.
        probe: whether to re-fit the head on the hold-out at every refresh, which probabilities need.
        head: name of the classification head, where it cannot be found.
        layers: further layers to score in a random projection, by name; ``"auto"`` scores the head alone.
        rank: of that projection; by the plan if left out.
        planned_steps: optimiser steps of the run; needed by gates that are ramps and by ``monitor.weights``.

    >>> Method(solver="direct", gate="none").gate_settings.mode
    'none'
    """

    curvature: str = "kfac"
    curvature_settings: Mapping[str, Any] | None = None
    solver: str = "richardson"
    refine_below: float | None = None
    leak_horizon: float | None = 800.0
    gate: str | GateSettings = "relative"
    weighting: Weighting = "equal"
    temperature: float | None = None
    probe: bool = True
    head: str | None = None
    layers: str | Sequence[str] = "auto"
    rank: int | None = None
    planned_steps: int | None = None

    def __post_init__(self) -> None:
        _ = self.gate_settings  # raises where the mode is unknown
        if self.solver not in _SOLVERS:
            raise SgoifError(f"solver must be one of {', '.join(_SOLVERS)}, got {self.solver!r}.")
        if self.weighting not in get_args(Weighting):
            raise SgoifError(f"weighting must be one of {', '.join(get_args(Weighting))}, got {self.weighting!r}.")
        if self.refine_below is not None and (self.solver != "richardson" or not 0 < self.refine_below <= 1):
            raise SgoifError(
                f"refine_below is a confidence in (0, 1] below which tracked directions are refined, got "
                f"{self.refine_below!r} with solver={self.solver!r}."
            )
        if self.temperature is not None and not self.temperature > 0:
            raise SgoifError(f"temperature must be positive or None, got {self.temperature!r}.")
        if (self.rank is not None and self.rank < 1) or (self.planned_steps is not None and self.planned_steps < 1):
            raise SgoifError(f"rank and planned_steps count from 1, got {self.rank} and {self.planned_steps}.")

    @property
    def gate_settings(self) -> GateSettings:
        """The gate, with all of its settings."""
        return self.gate if isinstance(self.gate, GateSettings) else GateSettings(mode=cast(Any, self.gate))
