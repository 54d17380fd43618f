"""The influence engine: anchors, curvature, tracked directions and gate, advanced once per optimiser step.

It knows nothing of hooks, ids or sinks. A step first *scores* with the state that the previous steps left, so that
every micro-batch of one optimiser step is judged alike, and then *updates*: curvature from what the step showed,
anchors when a refresh is due, directions by one product.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sgoif.curvature import Curvature, Statistic, create, reduce_statistics
from sgoif.gradients import Capture, ExactSpace, Layer, LayerCapture, ProjectedSpace, Space, dot_directions
from sgoif.gradients.contractions import widen
from sgoif.influence import (
    HORIZON,
    AnchorDraw,
    Anchors,
    DualAnchors,
    Gate,
    GateReading,
    GateSettings,
    HoldOut,
    Tracker,
    Weighting,
    most_probable,
    refit_head,
    score,
)
from sgoif.linalg import Kronecker, Richardson, norm
from sgoif.records import GradientRows
from sgoif.tasks.classification import margins
from sgoif.training.signals import INFLUENCE_SIGNALS, SIGNALS, VisitFlag

__all__ = ["Engine", "EngineSettings"]

MANY_CLASSES = 64  # above it no direction per class is held


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Every component of the method as one switch."""

    curvature: str = "kfac"
    curvature_settings: Mapping[str, Any] | None = None
    solver: str = "richardson"  # "richardson" tracks; "direct" solves at each refresh
    leak_horizon: float | None = 800.0
    gate: GateSettings = field(default_factory=GateSettings)
    weighting: Weighting = "equal"
    probe: bool = True
    rank: int = 16


class Engine:
    """One model's influence state.

    Args:
        head: the classification head.
        others: further layers, scored in a projected space.
        holdout: the hold-out.
        settings: the switches.
        train_size: number of training examples.
        planned_steps: optimiser steps of the run, where known.
        per_refresh: hold-out examples per refresh.
        horizon: examples per anchor that its averaged gradient remembers.
        seed: of the projections.
    """

    def __init__(
        self,
        head: Layer,
        others: Sequence[Layer],
        holdout: HoldOut,
        settings: EngineSettings,
        *,
        train_size: int,
        planned_steps: int | None,
        per_refresh: int,
        horizon: float = HORIZON,
        seed: int = 0,
    ) -> None:
        self.head, self.settings, self.holdout = head, settings, holdout
        self.spaces: dict[str, Space] = {head.name: ExactSpace(head)}
        self.spaces |= {la.name: ProjectedSpace(la, rank=settings.rank, seed=seed) for la in others}
        shapes = {name: space.shape for name, space in self.spaces.items()}
        device = holdout.device
        weight = next(iter(head.parameters.values()))
        self.dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
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
        self.gate = Gate(settings.gate, train_size=train_size, planned_steps=planned_steps, device=device)
        rows, columns = head.shape.outputs, head.shape.inputs
        self.dual = (
            DualAnchors(len(holdout), rows, columns, holdout.labels, holdout.num_classes, dtype=self.dtype)
            if self.pooled
            else None
        )
        keeps = len(holdout) if settings.probe else 0
        self.features = torch.zeros(keeps, columns, device=device, dtype=self.dtype)
        self.seen = torch.zeros(keeps, device=device, dtype=self.dtype)
        self.probe_weight: Tensor | None = None
        self.solved: dict[str, Tensor] | None = None  # H⁻¹g at the last refresh
        self.reading: GateReading | None = None
        self._statistics: list[dict[str, Statistic]] = []
        self._gradient: dict[str, Tensor] = {}  # sum over the step's examples
        self._gradient_count = 0

    @property
    def layers(self) -> list[Layer]:
        return [space.layer for space in self.spaces.values()]

    # Scoring: reads the state, never changes it.

    def score(self, calls: Sequence[LayerCapture], outputs: Tensor, labels: Tensor, skip: Tensor | None) -> Tensor:
        """All signals of a batch as one packed tensor ``[B, len(SIGNALS)]``, without host synchronisation.

        Args:
            calls: the captured calls of the scored layers.
            outputs: logits, ``[B, C]``.
            labels: given classes, ``[B]``.
            skip: rows whose targets are mixed, ``[B]``, where there may be any.
        """
        outputs = widen(outputs)
        columns = self._plain_signals(outputs, labels)
        columns |= self._influence_signals(calls, outputs, labels)
        columns |= self._probe_signals(calls, outputs, labels, columns["loss"])
        flags = torch.zeros_like(columns["loss"])
        flags = flags + VisitFlag.NOT_JUDGED * (columns["confidence"] <= 0)
        packed = torch.stack([columns[name].to(self.dtype) for name in SIGNALS[:-1]], 1)
        finite = torch.isfinite(packed).all(1)
        flags = flags + VisitFlag.NOT_FINITE * (~finite)
        if skip is not None:
            flags = flags + VisitFlag.MIXED * skip
        return torch.cat([packed, flags[:, None].to(packed.dtype)], 1)

    def _plain_signals(self, outputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        log_p = outputs.log_softmax(1)
        given = log_p.gather(1, labels[:, None])[:, 0]
        others = log_p.scatter(1, labels[:, None], float("-inf"))
        return {
            "loss": -given,
            "p_given": given.exp(),
            "margin": margins(outputs, labels),
            "runner_up": others.argmax(1),
        }

    def _influence_signals(self, calls: Sequence[LayerCapture], outputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        if self.reading is None:
            empty = torch.zeros_like(outputs[:, 0])
            return {name: empty for name in (*INFLUENCE_SIGNALS, "confidence", "confidence_worst")}
        confidence, known = self.reading.confidence, self.anchors.known
        # tracked, plain and solved directions side by side: one contraction serves all
        kinds = [self.directions(), self.anchors.gradients, self.solved or self.anchors.gradients]
        stacked = {name: torch.cat([kind[name] for kind in kinds]) for name in self.spaces}
        dots, plain, direct = dot_directions(calls, self.spaces, stacked).chunk(3, 1)
        if self.dual is None:
            tracked = score(dots, labels, confidence, known=known, weighting=self.settings.weighting)
            identity, solved = score(plain, labels, known=known), score(direct, labels, known=known)
            harm, harm_identity, harm_solved = tracked.harm, identity.harm, solved.harm
            gate_harm, gate_worst = tracked.confidence, tracked.confidence_worst
        else:
            head_rows = self.head_rows(calls)
            near, known = most_probable(outputs), self.dual.known
            tracked = score(self.dual.dots(head_rows), labels, known=known, candidates=near)
            identity = score(self.dual.dots(head_rows, identity=True), labels, known=known, candidates=near)
            solved, harm, harm_identity, harm_solved = tracked, -dots[:, 0], -plain[:, 0], -direct[:, 0]
            gate_harm = gate_worst = confidence[0].expand(len(labels))
        return {
            "harm": harm,
            "worst": tracked.worst,
            "worst_anchor": tracked.worst_anchor,
            "own": tracked.own,
            "harm_identity": harm_identity,
            "worst_identity": identity.worst,
            "own_identity": identity.own,
            "harm_solved": harm_solved,
            "worst_solved": solved.worst,
            "own_solved": solved.own,
            "confidence": gate_harm,
            "confidence_worst": gate_worst,
        }

    def _probe_signals(
        self, calls: Sequence[LayerCapture], outputs: Tensor, labels: Tensor, loss: Tensor
    ) -> dict[str, Tensor]:
        if self.probe_weight is None:
            return {"probe_loss": torch.zeros_like(loss), "probe_margin": torch.zeros_like(loss)}
        features = widen(self.head_rows(calls).inputs)[:, 0].mean(2)
        moved = features @ self.probe_weight.mT
        change = nn.functional.cross_entropy(moved, labels, reduction="none") - loss
        return {"probe_loss": change, "probe_margin": margins(moved, labels)}

    def directions(self) -> dict[str, Tensor]:
        """``φ`` by layer: tracked, or solved at the last refresh."""
        return self.solved if self.settings.solver == "direct" and self.solved else self.tracker.directions

    def head_rows(self, calls: Sequence[LayerCapture]) -> GradientRows:
        """The head's rows of a batch."""
        (call,) = [c for c in calls if c.layer == self.head.name]
        return self.spaces[self.head.name].rows(call)

    # Updating: once per optimiser step.

    def measure(self, calls: Sequence[LayerCapture]) -> None:
        """Note what this micro-batch says about curvature."""
        self._statistics.append(self.curvature.measure([self.spaces[c.layer].rows(c) for c in calls]))

    def note_gradient(self, calls: Sequence[LayerCapture]) -> None:
        """Add this micro-batch to the step's mean gradient, where the gate looks at its norm."""
        if not self.gate.needs_gradient:
            return
        for call in calls:
            ones = torch.ones(call.num_examples, 1, device=call.output_grad.device, dtype=self.dtype)
            part = self.spaces[call.layer].combine(call, ones)
            self._gradient[call.layer] = self._gradient.get(call.layer, 0.0) + part
        self._gradient_count += calls[0].num_examples

    def absorb(self) -> None:
        """Take in the curvature of all micro-batches measured since the last time."""
        if self._statistics:
            self.curvature.absorb(reduce_statistics(self._statistics))
            self._statistics = []
            self.tracker.use_operator(self.curvature.operator())

    def refresh(
        self,
        model: nn.Module,
        capture: Capture,
        forward: Callable[[Any], Tensor],
        losses: Callable[[Tensor, Tensor], Tensor],
    ) -> AnchorDraw:
        """Draw hold-out examples and renew everything that depends on them."""
        draw = self.anchors.refresh(model, capture, forward, losses)
        with torch.no_grad():
            head_rows = self.head_rows(draw.calls)
            if self.dual is not None:
                self.dual.update(draw.positions, head_rows, self.anchors.trust)
                operator = self.curvature.operator(self.head.name) if self.tracker.is_ready else None
                self.dual.factorise(operator if isinstance(operator, Kronecker) else None)
            if self.settings.probe:
                self.features[draw.positions] = widen(head_rows.inputs)[:, 0].mean(2)
                self.seen[draw.positions] = 1.0
                self.probe_weight = refit_head(
                    self.features, self.holdout.labels, self.head_weight(), trust=self.seen * self.anchors.trust
                )
            if self.tracker.is_ready:
                self.solved = self.curvature.solve(self.anchors.gradients)
        return draw

    def head_weight(self) -> Tensor:
        """The head's current weights with the bias column, ``[C, I]``."""
        parameters = {name: value.detach() for name, value in self.head.parameters.items()}
        return self.head.block(parameters)[0].to(self.dtype)  # [C, I]

    def advance(self, learning_rate: float, weight_decay: float) -> None:
        """One product per anchor, and the gate's reading of what is left."""
        if not self.tracker.is_ready:
            return
        if self._gradient_count:
            self.gate.observe_gradient(norm(self._gradient)[0] / self._gradient_count)
            self._gradient, self._gradient_count = {}, 0
        residual = self.tracker.advance(self.anchors.gradients)
        if self.settings.solver == "direct":
            residual = torch.zeros_like(residual)
        self.reading = self.gate.read(
            residual,
            self.anchors.noise,
            norm(self.anchors.gradients),
            learning_rate=learning_rate,
            weight_decay=weight_decay,
        )

    def state_dict(self) -> dict[str, Any]:
        """All that later scores depend on."""
        reading = self.reading
        return {
            "anchors": self.anchors.state_dict(),
            "curvature": self.curvature.state_dict(),
            "tracker": self.tracker.state_dict(),
            "gate": self.gate.state_dict(),
            "reading": None if reading is None else {k: getattr(reading, k).clone() for k in _READING},
            "features": self.features.clone(),
            "seen": self.seen.clone(),
            "probe_weight": None if self.probe_weight is None else self.probe_weight.clone(),
            "dual": None if self.dual is None else self.dual.state_dict(),
            "solved": self.solved,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where another engine with the same settings stood."""
        self.anchors.load_state_dict(state["anchors"])
        self.curvature.load_state_dict(state["curvature"])
        self.tracker.load_state_dict(state["tracker"])
        if self.curvature.counters.observations:
            self.tracker.use_operator(self.curvature.operator())
        self.gate.load_state_dict(state["gate"])
        reading = state["reading"]
        self.reading = None if reading is None else GateReading(**reading)
        self.features, self.seen = state["features"].to(self.features), state["seen"].to(self.seen)
        self.probe_weight, self.solved = state["probe_weight"], state["solved"]
        if self.dual is not None:
            self.dual.load_state_dict(state["dual"])


_READING = ("residual", "noise", "tau", "confidence", "beta", "gamma")
