"""How influence is estimated while a model trains: the switches, checked when they are set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from sgoif.errors import SgoifError
from sgoif.influence import GateSettings, Weighting

__all__ = ["Method"]

_SOLVERS = ("richardson", "direct", "neumann", "cg")
RefineIf = Literal["low", "large", "uncertain"]


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
        refine_if: what else it takes: ``"low"`` nothing; ``"large"`` a score since the last refresh above the running
            99th percentile; ``"uncertain"`` an empirical-Bernstein interval of their mean score that holds zero.
        sketch_rank: columns of the sketch by which these conjugate gradients are preconditioned; 0 for none.
        subspace: dominant directions of the curvature in which tracked directions are solved exactly at each step;
            none by default.
        subspace_every: refreshes after which these are looked for again.
        replace_every: refreshes between two replacements of the tenth of the anchors that has the lowest confidence by
            other hold-out examples; never by default.
        gram_below: smallest eigenvalue of the Gram matrix of the directions below which the anchor that depends most on
            the others is replaced; never by default.
        leak_horizon: steps after which a tracked direction has forgotten its start; None for never.
        gate: name of a mode, or :class:`sgoif.influence.GateSettings`.
        weighting: of the anchors: ``"equal"``, ``"confidence"`` (``c / Σc``) or ``"paper"`` (``c² / Σc``).
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
    refine_if: RefineIf = "low"
    sketch_rank: int = 16
    subspace: int | None = None
    subspace_every: int = 1
    replace_every: int | None = None
    gram_below: float | None = None
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
        if self.refine_if not in get_args(RefineIf):
            raise SgoifError(f"refine_if must be one of {', '.join(get_args(RefineIf))}, got {self.refine_if!r}.")
        counted = {name: getattr(self, name) for name in ("subspace", "subspace_every", "replace_every")}
        if any(value is not None and value < 1 for value in counted.values()):
            raise SgoifError(f"{', '.join(counted)} count from 1, got {', '.join(map(str, counted.values()))}.")
        if self.sketch_rank < 0:
            raise SgoifError(f"sketch_rank counts columns, got {self.sketch_rank}.")
        if self.gram_below is not None and not 0 < self.gram_below <= 1:
            raise SgoifError(f"gram_below is an eigenvalue in (0, 1], got {self.gram_below!r}.")
        tracked = [name for name in ("subspace", "replace_every", "gram_below") if getattr(self, name) is not None]
        if tracked and self.solver != "richardson":
            raise SgoifError(f"{', '.join(tracked)} need tracked directions, got solver={self.solver!r}.")
        if self.temperature is not None and not self.temperature > 0:
            raise SgoifError(f"temperature must be positive or None, got {self.temperature!r}.")
        if (self.rank is not None and self.rank < 1) or (self.planned_steps is not None and self.planned_steps < 1):
            raise SgoifError(f"rank and planned_steps count from 1, got {self.rank} and {self.planned_steps}.")

    @classmethod
    def paper(cls, **changes: Any) -> Method:
        """Algorithm 1 of the paper with all of its parts, each of which ``changes`` may set otherwise.

        Curvature is a low rank plus a diagonal, tracked by Richardson's iteration without a leak in a subspace of 16
        directions; directions of low confidence that scored something large are refined by sketch-PCG; every fifth
        refresh replaces the least confident anchors, and so does a Gram matrix with an eigenvalue below 0.1; scores are
        weighted by ``c² / Σc`` and bent by a temperature.

        Where the paper contradicts itself, this takes one reading. The tolerance ``κβΓ`` is compared with a relative
        residual, and β and Γ with their own medians of the first steps: compared as printed the gate never opens, which
        ``gate="paper"`` shows. A positive score means harm. A batch is scored by the directions that the step before
        left.

        >>> Method.paper(subspace=None).weighting
        'paper'
        """
        published: dict[str, Any] = {
            "curvature": "lowrank",
            "leak_horizon": None,
            "gate": GateSettings(mode="linear", beta_power=1.0, gamma_power=1.0),
            "weighting": "paper",
            "temperature": 1.0,
            "refine_below": 0.5,
            "refine_if": "large",
            "subspace": 16,
            "replace_every": 5,
            "gram_below": 0.1,
        }
        return cls(**{**published, **changes})

    @property
    def gate_settings(self) -> GateSettings:
        """The gate, with all of its settings."""
        return self.gate if isinstance(self.gate, GateSettings) else GateSettings(mode=cast(Any, self.gate))
