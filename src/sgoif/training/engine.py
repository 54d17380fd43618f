"""The influence engine: anchors, curvature, tracked directions and gate, advanced once per optimiser step.

It knows nothing of hooks, ids or sinks. A step first *scores* with the state that the previous steps left, so that
every micro-batch of one optimiser step is judged alike, and then *updates*: curvature from what the step showed,
anchors when a refresh is due, directions by one product.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast, get_args

import torch
from torch import Tensor, nn

from sgoif.curvature import Curvature, Statistic, create, reduce_statistics
from sgoif.distributed import Peers, SingleProcess, is_sharded, keep_sharded
from sgoif.errors import SgoifError
from sgoif.gradients import (
    Capture,
    ExactSpace,
    Layer,
    LayerCapture,
    ProjectedSpace,
    Space,
    collect_parameters,
    dot_directions,
    quiet_eval,
)
from sgoif.gradients.contractions import pool_positions, widen
from sgoif.influence import (
    HORIZON,
    AnchorDraw,
    Anchors,
    DualAnchors,
    Gate,
    GateReading,
    GateSettings,
    HeadJudge,
    HoldOut,
    Likeness,
    Tracker,
    Weighting,
    refit_head,
)
from sgoif.influence.scoring import KnownAnchors
from sgoif.linalg import KroneckerInverse, Richardson, norm
from sgoif.records import SIGNALS, GradientRows, VisitFlag
from sgoif.training.exchange import gather_draw, reduce_curvature
from sgoif.training.stepgradient import StepGradient

__all__ = ["Engine", "Method"]

_SOLVERS = ("richardson", "direct")
_RANK = 16  # of the projection of layers beside the head
MANY_CLASSES = 64  # above it no direction per class is held
_POOLED_TOLERANCE = 0.5  # of the residual of one anchor for all classes, most of which is sampling noise
_PREDICTED = 4096  # hold-out examples whose predictions are renewed when a run is closed
REFIT_WORK = 2**26  # multiplications of one product of a re-fit, about 1 ms; beyond it a re-fit is made more rarely


@dataclass(frozen=True, slots=True)
class Method:
    """How influence is estimated: every component is one switch.

    Attributes:
        curvature: ``"kfac"``, ``"diagonal"``, ``"fisher"``, ``"lowrank"`` or ``"identity"``.
        curvature_settings: keyword arguments of that backend. If left out, K-FAC is damped more where only the head
            learns.
        solver: ``"richardson"`` tracks the directions step by step, ``"direct"`` solves at each refresh.
        leak_horizon: steps after which a tracked direction has forgotten its start; None for never.
        gate: name of a mode, or :class:`sgoif.influence.GateSettings`.
        weighting: of the anchors: ``"equal"`` or ``"confidence"``.
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
    leak_horizon: float | None = 800.0
    gate: str | GateSettings = "relative"
    weighting: Weighting = "equal"
    probe: bool = True
    head: str | None = None
    layers: str | Sequence[str] = "auto"
    rank: int | None = None
    planned_steps: int | None = None

    def __post_init__(self) -> None:
        if self.solver not in _SOLVERS:
            raise SgoifError(f"solver must be one of {', '.join(_SOLVERS)}, got {self.solver!r}.")
        if self.weighting not in get_args(Weighting):
            raise SgoifError(f"weighting must be one of {', '.join(get_args(Weighting))}, got {self.weighting!r}.")
        if (self.rank is not None and self.rank < 1) or (self.planned_steps is not None and self.planned_steps < 1):
            raise SgoifError(f"rank and planned_steps count from 1, got {self.rank} and {self.planned_steps}.")
        power = self.gate_settings.gamma_power
        if power != 0:
            raise SgoifError(
                f"gamma_power must be 0, got {power}: the condition proxy Γ is not measured while "
                "training, so it would change nothing. Leave it out."
            )

    @property
    def gate_settings(self) -> GateSettings:
        """The gate, with all of its settings."""
        return self.gate if isinstance(self.gate, GateSettings) else GateSettings(mode=cast(Any, self.gate))


class Engine:
    """One model's influence state.

    Args:
        head: the classification head.
        others: further layers, scored in a projected space.
        holdout: the hold-out.
        settings: the switches.
        train_size: number of training examples.
        per_refresh: hold-out examples per refresh.
        horizon: examples per anchor that its averaged gradient remembers.
        seed: of the projections.
        peers: the processes that train together. All hold the same state: what goes into it is exchanged first.
    """

    def __init__(
        self,
        head: Layer,
        others: Sequence[Layer],
        holdout: HoldOut,
        settings: Method,
        *,
        train_size: int,
        per_refresh: int,
        horizon: float = HORIZON,
        seed: int = 0,
        peers: Peers | None = None,
    ) -> None:
        self.head, self.settings, self.holdout = head, settings, holdout
        self.peers = peers or SingleProcess()
        self.spaces: dict[str, Space] = {head.name: ExactSpace(head)}
        self.spaces |= {la.name: ProjectedSpace(la, rank=settings.rank or _RANK, seed=seed) for la in others}
        shapes = {name: space.shape for name, space in self.spaces.items()}
        device = holdout.device
        weight = next(iter(head.parameters.values()))
        self.dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
        self.is_sharded = is_sharded(*head.parameters.values())
        self._seen_head: dict[str, Tensor] | None = None  # whole, where the model keeps pieces
        self.pooled = holdout.num_classes > MANY_CLASSES
        self.anchors = Anchors(
            holdout, self.spaces, pooled=self.pooled, per_refresh=per_refresh, horizon=horizon, dtype=self.dtype
        )
        self.curvature: Curvature = create(
            settings.curvature, shapes, device=device, dtype=self.dtype, **dict(settings.curvature_settings or {})
        )
        self.tracker = Tracker(
            shapes,
            self.anchors.num_anchors,
            solver=Richardson(leak_horizon=settings.leak_horizon),
            device=device,
            dtype=self.dtype,
        )
        gate = settings.gate_settings
        if self.pooled and gate.mode == "relative" and gate.kappa is None:
            gate = replace(gate, kappa=_POOLED_TOLERANCE)
        self.gate = Gate(gate, train_size=train_size, planned_steps=settings.planned_steps, device=device)
        rows, columns = head.shape.outputs, head.shape.inputs
        self.dual = (
            DualAnchors(len(holdout), rows, columns, holdout.labels, holdout.num_classes, dtype=self.dtype)
            if self.pooled
            else None
        )
        keeps = len(holdout) if settings.probe else 0
        self.features = torch.zeros(keeps, columns, device=device, dtype=self.dtype)
        self.seen = torch.zeros(keeps, device=device, dtype=self.dtype)
        self.predicted = torch.full((len(holdout),), -1, device=device)  # class of each, when last seen; -1 before
        num_features, moves = columns - head.shape.has_bias, horizon < float("inf")
        self.likeness = Likeness(num_features, moves=moves, seed=seed, device=device, dtype=self.dtype)
        self.probe_weight: Tensor | None = None
        self.probe_shift: Tensor | None = None  # of the last re-fit: how far it moved the head
        self._refreshes = 0
        self._note_anchors()
        self.solved: dict[str, Tensor] | None = None  # H⁻¹g at the last refresh
        self.reading: GateReading | None = None
        self.agreement = torch.zeros((), device=device, dtype=self.dtype)  # share of the hold-out predicted as labelled
        self.draws = 0  # how often the hold-out was looked at
        self.holdout_not_finite = 0  # hold-out examples left out of a refresh
        self._statistics: list[dict[str, Statistic]] = []
        self._gradient = StepGradient()

    @property
    def layers(self) -> list[Layer]:
        return [space.layer for space in self.spaces.values()]

    # Scoring: reads the state, never changes it.

    def score(
        self,
        calls: Sequence[LayerCapture],
        outputs: Tensor,
        labels: Tensor,
        *,
        mixed: Tensor | None = None,
        is_class: Tensor | None = None,
    ) -> Tensor:
        """All signals of a batch as one packed tensor ``[B, len(SIGNALS)]``, without host synchronisation.

        Args:
            calls: the captured calls of the scored layers.
            outputs: logits, ``[B, C]``.
            labels: given classes, ``[B]``.
            mixed: rows whose targets are mixed, ``[B]``, where there may be any.
            is_class: rows whose given label is a class, ``[B]``, where some may have none.
        """
        rows, outputs = self.head_rows(calls), widen(outputs)
        columns = self.judge().signals(rows, outputs, labels, self._other_dots(calls))
        packed = torch.stack([columns[name].to(self.dtype) for name in SIGNALS[:-1]], 1)
        is_finite = packed.abs().amax(1) < float("inf")  # NaN passes through the maximum and fails the comparison
        flags = (columns["confidence"] <= 0).to(self.dtype)  # NOT_JUDGED is 1
        flags = flags.add(~is_finite, alpha=int(VisitFlag.NOT_FINITE))
        if mixed is not None:
            flags = flags.add(mixed, alpha=int(VisitFlag.MIXED))
        if is_class is not None:
            flags = flags.add(~is_class, alpha=int(VisitFlag.IGNORED))
        return torch.cat([packed, flags[:, None]], 1)

    def judge(self) -> HeadJudge:
        """What the head's scores depend on, as of now."""
        confidence = None if self.reading is None else self.reading.confidence
        directions = self._stacked(self.head.name)
        return HeadJudge(directions, self._known, confidence, self.probe_weight, self.dual, self.settings.weighting)

    def _stacked(self, layer: str) -> Tensor:
        """Tracked, plain and solved directions of a layer side by side: one contraction serves all."""
        kinds = (self.directions(), self.anchors.gradients, self.solved or self.anchors.gradients)
        return torch.cat([kind[layer] for kind in kinds])

    def _other_dots(self, calls: Sequence[LayerCapture]) -> Tensor | None:
        """Inner products at the layers beside the head, ``[B, 3·K]``; None where there are none."""
        others = [call for call in calls if call.layer != self.head.name]
        if not others or self.reading is None:
            return None
        return dot_directions(others, self.spaces, {call.layer: self._stacked(call.layer) for call in others})

    def sketch(self, calls: Sequence[LayerCapture]) -> Tensor:
        """What the head sees of each example, as signs ``[B, 256]``, without host synchronisation."""
        call = self._head_call(calls)
        if isinstance(call.module, nn.Linear) and call.input.dim() == 2:
            return self.likeness.signs(call.input)  # two operators in all
        return self.likeness.signs(pool_positions(self.head_rows(calls))[0])

    def directions(self) -> dict[str, Tensor]:
        """``φ`` by layer: tracked, or solved at the last refresh."""
        return self.solved if self.settings.solver == "direct" and self.solved else self.tracker.directions

    def head_rows(self, calls: Sequence[LayerCapture]) -> GradientRows:
        """The head's rows of a batch."""
        return self.spaces[self.head.name].rows(self._head_call(calls))

    def _head_call(self, calls: Sequence[LayerCapture]) -> LayerCapture:
        (call,) = [c for c in calls if c.layer == self.head.name]
        return call

    # Updating: once per optimiser step.

    def measure(self, calls: Sequence[LayerCapture]) -> None:
        """Note what this micro-batch says about curvature."""
        self._statistics.append(self.curvature.measure([self.spaces[c.layer].rows(c) for c in calls]))

    def note_gradient(self, calls: Sequence[LayerCapture]) -> None:
        """Add this micro-batch to the step's mean gradient, where the gate looks at its norm."""
        if self.gate.needs_gradient:
            self._gradient.add(calls, self.spaces)

    def absorb(self) -> None:
        """Take in the curvature of all micro-batches measured since the last time."""
        if self._statistics:
            self.curvature.absorb(reduce_curvature(self.peers, reduce_statistics(self._statistics)))
            self._statistics = []
            self.tracker.use_operator(self.curvature.operator())

    def refresh(
        self,
        model: nn.Module,
        capture: Capture,
        forward: Callable[[Any], Tensor],
        losses: Callable[[Tensor, Tensor], Tensor],
    ) -> AnchorDraw:
        """Draw hold-out examples and renew everything that depends on them; nothing, where none gave numbers."""
        positions = self.holdout.next_positions(self.anchors.per_refresh)
        mine, place = self.peers.share_of(positions), self.holdout.position
        with keep_sharded(model), collect_parameters(self.head) as seen:
            # a sharded model's pass is a collective of the training's own, so nobody begins it unless all do
            draw = self.anchors.look(model, capture, forward, losses, mine, lambda: self.peers.check_in_sync(place))
        if self.is_sharded:
            self._seen_head = seen
        with torch.no_grad():
            draw = gather_draw(self.peers, draw, positions, self.holdout.labels[positions]).finite()
            self.holdout_not_finite += len(positions) - len(draw.positions)
            if not len(draw.positions):
                return draw
            self.anchors.absorb(draw)
            self._note_anchors()
            predicted = draw.outputs.argmax(1)
            self.predicted[draw.positions] = predicted
            right = (predicted == draw.labels).to(self.dtype).mean()
            self.agreement = right if self.draws == 0 else 0.8 * self.agreement + 0.2 * right
            self.draws += 1
            head_rows = draw.rows[self.head.name]
            features = pool_positions(head_rows)[0].to(self.dtype)
            self.likeness.follow(features)
            if self.tracker.is_ready:
                self.solved = self.curvature.solve(self.anchors.gradients)
            if self.dual is not None:
                self.dual.update(draw.positions, head_rows, self.anchors.trust)
                inverse = self.curvature.factorise(self.head.name).inverse if self.tracker.is_ready else None
                self.dual.use_inverse(inverse if isinstance(inverse, KroneckerInverse) else None)
            if self.settings.probe:
                self.features[draw.positions] = features
                self.seen[draw.positions] = 1.0
                self._refit()
        return draw

    @torch.no_grad()
    def predict_holdout(self, model: nn.Module, forward: Callable[[Any], Tensor]) -> None:
        """Renew the predictions of the hold-out, of a part spread over it where it is large; nothing else changes.

        What refreshes saw of most examples is some time old, and in a short training of a model that knew nothing yet.
        """
        count = len(self.holdout)
        positions = torch.linspace(0, count - 1, min(count, _PREDICTED)).round().long()
        found = torch.full_like(self.predicted, -1)
        with quiet_eval(model):
            for part in positions.split(self.anchors.per_refresh):
                outputs = forward(self.holdout.inputs(part))
                is_finite = outputs.isfinite().all(1)
                found[part.to(found.device)] = torch.where(is_finite, outputs.argmax(1), -1).to(found)
        self.predicted = found

    def _note_anchors(self) -> None:
        """Keep for the steps what changes at refreshes only."""
        self.gradient_size = norm(self.anchors.gradients)  # |g_v|
        self._known = KnownAnchors.of(self.anchors.known, self.dtype)

    def _refit(self) -> None:
        """Re-fit the head; where that is costly (many classes, a large hold-out) not at every refresh.

        In between, the last fit's *change* is added to the head as it is now: what the hold-out would move follows the
        head, only the size of the move is that of an earlier refresh.
        """
        now = self.head_weight()
        if self.probe_shift is None or self._refreshes % (1 + self.features.numel() * len(now) // REFIT_WORK) == 0:
            trust = self.seen * self.anchors.trust
            self.probe_shift = refit_head(self.features, self.holdout.labels, now, trust=trust) - now
        self.probe_weight = now + self.probe_shift
        self._refreshes += 1

    def head_weight(self) -> Tensor:
        """The head's weights with the bias column, ``[C, I]``: the current ones, sharded those of the last refresh."""
        return self.head.block(self._whole_head())[0].to(self.dtype)  # [C, I]

    def _whole_head(self) -> dict[str, Tensor]:
        return self._seen_head or {name: value.detach() for name, value in self.head.parameters.items()}

    def advance(self, learning_rate: float, weight_decay: float) -> None:
        """One product per anchor, and the gate's reading of what is left."""
        if not self.tracker.is_ready:
            return
        size = self._gradient.take_norm(self.peers)
        if size is not None:
            self.gate.observe_gradient(size)
        residual = self.tracker.advance(self.anchors.gradients)
        if self.settings.solver == "direct":
            residual = torch.zeros_like(residual)
        reading = self.gate.read(
            residual,
            self.anchors.noise,
            self.gradient_size,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
        )
        if self.pooled and self.settings.gate_settings.mode == "relative":
            # The pooled gradient is easiest to follow while the network knows nothing: its residual was smallest in
            # the second of 12 epochs (CIFAR-100). So a visit counts by how much of the hold-out the network knows.
            reading = replace(reading, confidence=reading.confidence * self.agreement.square())
        self.reading = reading

    def state_dict(self) -> dict[str, Any]:
        """All that later scores depend on."""
        reading, head = self.reading, self._seen_head if self.is_sharded else self._whole_head()
        return {
            "anchors": self.anchors.state_dict(),
            "curvature": self.curvature.state_dict(),
            "tracker": self.tracker.state_dict(),
            "gate": self.gate.state_dict(),
            "reading": None if reading is None else {k: getattr(reading, k).clone() for k in _READING},
            "agreement": self.agreement.clone(),
            "draws": self.draws,
            "holdout_not_finite": self.holdout_not_finite,
            "features": self.features.clone(),
            "seen": self.seen.clone(),
            "predicted": self.predicted.clone(),
            "probe_weight": None if self.probe_weight is None else self.probe_weight.clone(),
            "probe_shift": None if self.probe_shift is None else self.probe_shift.clone(),
            "refreshes": self._refreshes,
            "dual": None if self.dual is None else self.dual.state_dict(),
            "likeness": self.likeness.state_dict(),
            "solved": self.solved,
            "seen_head": None if head is None else {name: value.clone() for name, value in head.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where another engine with the same settings stood."""
        self.anchors.load_state_dict(state["anchors"])
        self.curvature.load_state_dict(state["curvature"])
        self.tracker.load_state_dict(state["tracker"])
        if self.curvature.counters.observations:
            self.tracker.use_operator(self.curvature.operator())
        self.gate.load_state_dict(state["gate"])
        self.agreement, self.draws = state["agreement"].to(self.agreement), int(state["draws"])
        self.holdout_not_finite = int(state.get("holdout_not_finite", 0))
        reading = state["reading"]
        self.reading = None if reading is None else GateReading(**reading)
        self.features, self.seen = state["features"].to(self.features), state["seen"].to(self.seen)
        if "predicted" in state:  # states from before it have none
            self.predicted = state["predicted"].to(self.predicted)
        self.probe_weight, self.solved = state["probe_weight"], state["solved"]
        self.probe_shift, self._refreshes = state["probe_shift"], int(state["refreshes"])
        if self.is_sharded:
            self._seen_head = state.get("seen_head")
        self._note_anchors()
        if self.dual is not None:
            self.dual.load_state_dict(state["dual"])
        if "likeness" in state:  # states from before it have none
            self.likeness.load_state_dict(state["likeness"])


_READING = ("residual", "noise", "tau", "confidence", "beta", "gamma")
