"""How influence is estimated while a model trains: the switches, checked when they are set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal, cast, get_args

from sgoif.curvature import registered
from sgoif.errors import SgoifError
from sgoif.influence import GateSettings, Weighting

__all__ = ["ADAM", "OF_TRACKED", "Method"]

ADAM = "adam"  # curvature that an optimiser has, which only sequences can be scored by

_SOLVERS = ("richardson", "direct", "neumann", "cg")
OF_TRACKED = ("refine_below", "subspace", "replace_every", "gram_below")  # switches that need tracked directions
_WHOLE = {  # numbers that are counted, with the least of each
    **dict.fromkeys(("subspace", "subspace_every", "replace_every", "rank", "planned_steps"), 1),
    "sketch_rank": 0,
}
RefineIf = Literal["low", "large", "uncertain"]


@dataclass(frozen=True, slots=True)
class Method:
    """How influence is estimated: every component is one switch.

    Attributes:
        curvature: ``"kfac"``, ``"diagonal"``, ``"fisher"``, ``"lowrank"`` or ``"identity"``; with ``task="sequences"``
            also ``"adam"``, the second moments of the optimiser.
        curvature_settings: keyword arguments of that backend. If left out, K-FAC is damped more where only the head
            learns.
        solver: ``"richardson"`` tracks the directions step by step. The others solve at each refresh: ``"direct"``,
            ``"neumann"`` by a series whose order adapts, ``"cg"`` by conjugate gradients preconditioned by a sketch;
            the last two start from what they found before, and the gate sees what is left of the residual.
        refine_below: tracked directions whose confidence is below it are refined at a refresh, by ten products of
            preconditioned conjugate gradients; never by default.
        refine_if: a further condition: ``"low"`` for none; ``"large"`` for a score since the last refresh above the
            running 99th percentile; ``"uncertain"`` for an empirical-Bernstein interval of the mean score that contains
            zero.
        sketch_rank: columns of the sketch that preconditions these conjugate gradients; 0 for none.
        subspace: number of dominant directions of the curvature in which tracked directions are solved exactly at each
            step; none by default.
        subspace_every: refreshes after which these directions are recomputed.
        replace_every: refreshes between two replacements of the tenth of the anchors that has the lowest confidence by
            other hold-out examples; never by default.
        gram_below: smallest eigenvalue of the Gram matrix of the directions below which the anchor that depends most on
            the others is replaced; never by default.
        leak_horizon: steps after which a tracked direction has forgotten its start; None for never.
        gate: name of a mode, or :class:`sgoif.influence.GateSettings`.
        weighting: of the anchors: ``"equal"``, ``"confidence"`` (``c / Σc``) or ``"paper"`` (``c² / Σc``).
        temperature: squashes standardised scores, ``tanh(x / temperature)``, so that one extreme visit counts less; off
            by default. Only the columns ``harm_std`` and ``worst_std`` are standardised.
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
        if self.curvature not in (*registered(), ADAM):
            raise SgoifError(f"curvature must be one of {', '.join((*registered(), ADAM))}, got {self.curvature!r}.")
        if self.solver not in _SOLVERS:
            raise SgoifError(f"solver must be one of {', '.join(_SOLVERS)}, got {self.solver!r}.")
        if self.weighting not in get_args(Weighting):
            raise SgoifError(f"weighting must be one of {', '.join(get_args(Weighting))}, got {self.weighting!r}.")
        if self.solver != "richardson":
            asked = [name for name in OF_TRACKED if getattr(self, name) is not None]
            if asked:
                raise SgoifError(
                    f"solver={self.solver!r} solves for the directions at each refresh, and {', '.join(asked)} "
                    f"{'is' if len(asked) == 1 else 'are'} for tracked ones: also pass "
                    f"{', '.join(f'{name}=None' for name in asked)}, or leave out solver."
                )
        if self.refine_below is not None and not 0 < self.refine_below <= 1:
            raise SgoifError(f"refine_below is a confidence in (0, 1], got {self.refine_below!r}.")
        if self.refine_if not in get_args(RefineIf):
            raise SgoifError(f"refine_if must be one of {', '.join(get_args(RefineIf))}, got {self.refine_if!r}.")
        for name, least in _WHOLE.items():
            value = getattr(self, name)
            is_whole = isinstance(value, Integral) and not isinstance(value, bool)
            if value is not None and not (is_whole and value >= least):
                raise SgoifError(f"{name} is a whole number from {least} on, got {value!r}.")
        if self.leak_horizon is not None and not self.leak_horizon > 0:
            raise SgoifError(f"leak_horizon is a positive number of steps or None, got {self.leak_horizon!r}.")
        if self.gram_below is not None and not 0 < self.gram_below <= 1:
            raise SgoifError(f"gram_below is an eigenvalue in (0, 1], got {self.gram_below!r}.")
        if self.temperature is not None and not self.temperature > 0:
            raise SgoifError(f"temperature must be positive or None, got {self.temperature!r}.")

    @classmethod
    def paper(cls, **changes: Any) -> Method:
        """Algorithm 1 of the paper with all of its parts; ``changes`` overrides any of them.

        Curvature is a low rank plus a diagonal, tracked by Richardson's iteration without a leak in a subspace of 16
        directions; directions of low confidence that scored something large are refined by sketch-PCG; every fifth
        refresh replaces the least confident anchors, and so does a Gram matrix with an eigenvalue below 0.1; scores are
        weighted by ``c² / Σc`` and squashed by a temperature.

        Where the paper contradicts itself, this takes one reading. The tolerance ``κβΓ`` is compared with a relative
        residual, β and Γ are divided by their medians over the first steps, and their product is kept between 0.75 and
        2.5: as printed, which is ``gate="paper"``, the gate hardly ever opens. A positive score means harm. A batch is
        scored by the directions of the previous step.

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
