"""The influence engine: anchors, curvature, tracked directions and gate, advanced once per optimiser step.

It knows nothing of hooks, ids or sinks. A step is scored with the state that the previous steps left, so that every
micro-batch of one optimiser step is judged alike; then the state moves on: curvature from what the step showed, anchors
when a refresh is due, directions by one product.

Between two refreshes nothing but the directions moves, and these by a rule that looks at no example. So batches are
queued, and :meth:`Engine.settle` scores those of many steps in one call, each by the directions of its own step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from sgoif.curvature import Curvature, create
from sgoif.devices import send
from sgoif.distributed import Peers, SingleProcess, is_sharded, keep_sharded
from sgoif.gradients import (
    Capture,
    ExactSpace,
    Layer,
    LayerCapture,
    ProjectedSpace,
    Space,
    collect_parameters,
    dot_directions,
    rows_by_layer,
)
from sgoif.gradients.contractions import dots, pool_positions, widen
from sgoif.influence import (
    HORIZON,
    AnchorDraw,
    Anchors,
    ClassAnchors,
    Gate,
    GateReading,
    HeadJudge,
    HeadRefit,
    HoldOut,
    Likeness,
    PooledPoint,
    PooledTracker,
    Tracker,
)
from sgoif.influence.near_outputs import ALL_UP_TO, NearOutputs
from sgoif.influence.scoring import KnownAnchors
from sgoif.linalg import DiagonalKronecker, KroneckerInverse, Richardson, norm, unflatten
from sgoif.linalg.spectrum import extreme_ritz, random_columns
from sgoif.records import GradientRows
from sgoif.training.exchange import gather_draw, reduce_curvature
from sgoif.training.method import Method
from sgoif.training.observed_rows import ObservedRows
from sgoif.training.refinement import Refinement
from sgoif.training.replacement import Replacement
from sgoif.training.scoring_queue import (
    QueuedBatch,
    ScoredBatch,
    Waypoint,
    join_masks,
    join_rows,
    pack_signals,
    split_queue,
)
from sgoif.training.stepgradient import StepGradient

__all__ = ["Engine"]

log = logging.getLogger(__name__)

_RANK = 16  # of the projection of layers beside the head
MANY_CLASSES = 64  # above it no direction per class is held
_POOLED_TOLERANCE = 0.5  # of the residual of one anchor for all classes, most of which is sampling noise
MOST_QUEUED = 16 * 2**20  # bytes of batches and directions that may wait
MOST_OBSERVED = 16 * 2**20  # bytes of rows whose curvature may wait
_LANCZOS_STEPS = 16  # by which the ends of the curvature's spectrum are found
_MOST_LOGITS = 2**19  # scored in one call: of tables of that size there are about ten at a time


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
        self._shapes = shapes = {name: space.shape for name, space in self.spaces.items()}
        device = holdout.device
        weight = next(iter(head.parameters.values()))
        self.dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
        self.is_sharded = is_sharded(*head.parameters.values())
        self._seen_head: dict[str, Tensor] | None = None  # whole, where the model keeps pieces
        self.pooled = holdout.num_classes > MANY_CLASSES
        self.anchors = Anchors(
            holdout, self.spaces, pooled=self.pooled, per_refresh=per_refresh, horizon=horizon, dtype=self.dtype
        )
        many = {"diagonal_above": MANY_CLASSES} if settings.curvature == "kfac" else {}
        given = many | dict(settings.curvature_settings or {})
        self.curvature: Curvature = create(settings.curvature, shapes, device=device, dtype=self.dtype, **given)
        self.tracker: Tracker | PooledTracker
        leak = settings.leak_horizon
        like: dict[str, Any] = {"device": device, "dtype": self.dtype}
        if self.pooled and isinstance(self.curvature.operator(), DiagonalKronecker) and settings.subspace is None:
            self.tracker = PooledTracker(head.name, head.shape, leak_horizon=leak, **like)
        else:
            self.tracker = Tracker(
                shapes,
                self.anchors.num_anchors,
                solver=Richardson(leak_horizon=leak),
                subspace=settings.subspace or 0,
                subspace_every=settings.subspace_every,
                **like,
            )
        self._uses_near = (
            head.shape.outputs > ALL_UP_TO
            and isinstance(self.tracker, PooledTracker)
            and settings.solver == "richardson"
        )
        self.tracker.retarget(self.anchors.gradients)
        gate = settings.gate_settings
        if self.pooled and gate.mode == "relative" and gate.kappa is None:
            gate = replace(gate, kappa=_POOLED_TOLERANCE)
        self.gate = Gate(gate, train_size=train_size, planned_steps=settings.planned_steps, **like)
        columns = head.shape.inputs
        self.class_anchors: ClassAnchors | None = None
        if self.pooled:
            labels, largest = holdout.labels, int(holdout.counts.max())
            self.class_anchors = ClassAnchors(labels, holdout.num_classes, columns, largest=largest, dtype=self.dtype)
        keeps = len(holdout) if settings.probe or self.pooled else 0
        # of many classes, whose hold-outs are large, in half the bytes: far finer than one example differs from another
        kept_as = torch.bfloat16 if self.pooled and self.dtype == torch.float32 else self.dtype
        self.features = torch.zeros(keeps, columns, device=device, dtype=kept_as)
        self.seen = torch.zeros(keeps, device=device, dtype=self.dtype)
        self.predicted = torch.full((len(holdout),), -1, device=device)  # class of each, when last seen; -1 before
        num_features, moves = columns - head.shape.has_bias, horizon < float("inf")
        self.likeness = Likeness(num_features, moves=moves, seed=seed, device=device, dtype=self.dtype)
        self.probe_weight: Tensor | None = None
        self._head_refit = HeadRefit()
        self._note_anchors()
        self.solved: dict[str, Tensor] | None = None  # H⁻¹g at the last refresh
        self.refinement = Refinement(settings, self.anchors.num_anchors, device=device, dtype=self.dtype)
        every, gram_below = settings.replace_every, settings.gram_below
        if self.pooled and (every is not None or gram_below is not None):
            log.warning("with more than %d classes one anchor stands for all: no anchor is replaced.", MANY_CLASSES)
            every = gram_below = None
        self.replacement = Replacement(self.anchors.num_anchors, every=every, gram_below=gram_below, device=device)
        self._solved_total: Tensor | None = None  # Σ_c g_c / l_c, since then
        self._reading: GateReading | None = None
        self.agreement = torch.zeros((), device=device, dtype=self.dtype)  # share of the hold-out predicted as labelled
        self.draws = 0  # how often the hold-out was looked at
        self.holdout_not_finite = 0  # hold-out examples left out of a refresh
        self._observed = ObservedRows()
        self._gradient = StepGradient()
        self._queue: list[QueuedBatch] = []
        self._queued_bytes = self._tickets = 0
        self._path: list[Waypoint] = []  # by which directions went since the last batch was scored
        self._due: list[tuple[float, float]] = []  # learning rate and weight decay of steps still to advance by
        self._scored: dict[int, ScoredBatch | Exception] = {}
        self._queues = len(self.spaces) == 1 and not self.gate.needs_gradient

    @property
    def layers(self) -> list[Layer]:
        return [space.layer for space in self.spaces.values()]

    # Scoring: reads the state, never changes it.

    def score(self, calls: Sequence[LayerCapture], outputs: Tensor, labels: Tensor) -> Tensor:
        """All signals of a batch as one packed tensor ``[B, len(SIGNALS)]``, by the state as of now.

        Args:
            calls: the captured calls of the scored layers.
            outputs: logits, ``[B, C]``.
            labels: given classes, ``[B]``.
        """
        rows, judge = self.head_rows(calls), self.judge()
        beside = self._other_dots(calls)
        products = None if beside is None else judge.dots(rows) + beside
        return pack_signals(judge.signals(rows, widen(outputs), labels, products), self.dtype)

    def queue(
        self,
        calls: Sequence[LayerCapture],
        outputs: Tensor,
        labels: Tensor,
        *,
        mixed: Tensor | None = None,
        is_class: Tensor | None = None,
    ) -> int:
        """Keep a batch of this step to be scored by :meth:`settle`; a few operators, no host synchronisation.

        Args:
            calls: the captured calls of the scored layers.
            outputs: logits, ``[B, C]``.
            labels: given classes, ``[B]``.
            mixed: rows whose targets are mixed, ``[B]``, where there may be any.
            is_class: rows whose given label is a class, ``[B]``, where some may have none.

        Returns:
            A ticket, for :meth:`take_scores`.
        """
        beside = self._other_dots(calls)  # first: it may settle
        batch = QueuedBatch(
            ticket=self._tickets,
            place=len(self._path) + len(self._due),
            rows=self.head_rows(calls),
            outputs=outputs.to(widen(outputs).dtype, copy=True),  # the loop may go on in place
            labels=labels,
            mixed=mixed,
            is_class=is_class,
            beside=beside,
        )
        if self._queue and not batch.fits(self._queue[-1]):
            self.settle()
            batch = replace(batch, place=0)
        self._tickets += 1
        self._queue.append(batch)
        self._queued_bytes += batch.nbytes
        return batch.ticket

    def settle(self) -> None:
        """Score what is queued, after the directions have caught up with the steps."""
        queued, self._queue, self._queued_bytes = self._queue, [], 0
        self._catch_up()
        path, self._path = [*self._path, self._waypoint()], []
        if not queued:
            return
        for part in split_queue(queued, _MOST_LOGITS):
            try:
                self._scored |= self._score_queue(part, path)
            except Exception:  # one by one it may go, as where memory is short; what fails again says why
                for batch in part:
                    try:
                        self._scored |= self._score_queue([batch], path)
                    except Exception as error:
                        self._scored[batch.ticket] = error

    def take_scores(self) -> dict[int, ScoredBatch | Exception]:
        """What was found of the settled batches, or why nothing was, by ticket; each is given once."""
        found, self._scored = self._scored, {}
        return found

    def _score_queue(self, queued: Sequence[QueuedBatch], path: Sequence[Waypoint]) -> dict[int, ScoredBatch]:
        """Score batches of several steps: what does not move by one product for all, the directions step by step."""
        judge = self._judge(path[-1])
        rows, products = join_rows([batch.rows for batch in queued]), None
        near = self._near_outputs(rows)
        if judge.confidence is not None:
            met = [(path[batch.place], batch) for batch in queued]
            gates = [point.confidence.expand(len(b), -1) for point, b in met if point.confidence is not None]
            judge = replace(judge, confidence=torch.cat(gates))
            products = self._products(rows, [(batch.rows, point.directions) for point, batch in met], near)
            if queued[0].beside is not None:
                products = products + torch.cat([b.beside for b in queued if b.beside is not None])
            self.refinement.note(products[:, : self.anchors.num_anchors])
        outputs, labels = (torch.cat([getattr(b, name) for b in queued]) for name in ("outputs", "labels"))
        columns = judge.signals(rows, outputs, labels, products, near)
        masks = join_masks(queued, "mixed", False), join_masks(queued, "is_class", True)
        sizes = [len(batch) for batch in queued]
        packed = pack_signals(columns, self.dtype, *masks).split(sizes)
        signs = self._signs(rows, sizes)
        return {b.ticket: ScoredBatch(mine, seen) for b, mine, seen in zip(queued, packed, signs)}

    def _signs(self, rows: GradientRows, sizes: list[int]) -> Sequence[Tensor | Exception]:
        """Sketch what the head saw of each batch; scores are worth having without."""
        try:
            return list(self.sketch(rows).split(sizes))
        except Exception as error:
            return [error] * len(sizes)

    def _near_outputs(self, rows: GradientRows) -> NearOutputs | None:
        """The largest entries of the gradients, where outputs are so many that these must do."""
        return NearOutputs.of(pool_positions(rows)[1]) if self._uses_near else None

    def _products(
        self,
        rows: GradientRows,
        met: Sequence[tuple[GradientRows, Tensor | PooledPoint]],
        near: NearOutputs | None,
    ) -> Tensor:
        """Inner products with tracked, plain and solved directions, ``[B, 3·K]``; the tracked differ by batch."""
        head = self.head.name
        plain = self.anchors.gradients[head]
        solved = plain if self.solved is None else self.solved[head]
        at_steps = [(mine, at) for mine, at in met if isinstance(at, PooledPoint)]
        if near is not None and isinstance(self.tracker, PooledTracker):
            a = pool_positions(rows)[0].to(self.dtype)
            moving_and_plain = self.tracker.dots_near(a, near, [(mine.num_examples, at) for mine, at in at_steps])
            return torch.cat([moving_and_plain, self._solved_near(a, near)[:, None]], 1)
        if at_steps and isinstance(self.tracker, PooledTracker):
            return torch.cat([self.tracker.dots(at_steps), dots(rows, solved)], 1)
        moving = torch.cat([dots(mine, at) for mine, at in met if isinstance(at, Tensor)])
        return torch.cat([moving, dots(rows, torch.cat([plain, solved]))], 1)

    def _solved_near(self, a: Tensor, near: NearOutputs) -> Tensor:
        """``⟨H⁻¹g, g_i⟩ = Σ_c (b_c / l_c) g_c · A⁻¹a``, ``[B]``: by rows of g, for those of ``H⁻¹g`` fill no cache."""
        assert self.class_anchors is not None
        inputs, factors = self.class_anchors.solve_inputs(a), self.class_anchors.output_factors
        goal = self.anchors.gradients[self.head.name][0, 0]
        factors = torch.ones_like(goal[:, 0]) if factors is None else factors
        at = torch.bmm(near.pick(goal), inputs[:, :, None])[:, :, 0] * near.pick(factors)
        if self._solved_total is None:
            self._solved_total = factors @ goal
        return near.weigh(at, inputs @ self._solved_total)

    def judge(self) -> HeadJudge:
        """What the head's scores depend on, as of now."""
        self.settle()
        return replace(self._judge(self._waypoint()), directions=self._stacked(self.head.name, self.directions()))

    def _judge(self, at: Waypoint) -> HeadJudge:
        return HeadJudge(
            None, self._known, at.confidence, self.probe_weight, self.class_anchors, self.settings.weighting
        )

    def _waypoint(self) -> Waypoint:
        confidence = None if self._reading is None else self._reading.confidence
        if isinstance(self.tracker, PooledTracker) and self.refinement.directions is None:
            return Waypoint(self.tracker.point, confidence)
        return Waypoint(self._directions()[self.head.name], confidence)

    def _stacked(self, layer: str, tracked: Mapping[str, Tensor]) -> Tensor:
        """Tracked, plain and solved directions of a layer side by side: one contraction serves all."""
        plain = self.anchors.gradients[layer]
        solved = self.solved
        if self._uses_near and self.class_anchors is not None and self.class_anchors.output_factors is not None:
            solved = self.curvature.solve(self.anchors.gradients)  # refreshes leave that out
        return torch.cat([tracked[layer], plain, plain if solved is None else solved[layer]])

    def _other_dots(self, calls: Sequence[LayerCapture]) -> Tensor | None:
        """Inner products at the layers beside the head, ``[B, 3·K]``; None where there are none."""
        others = [call for call in calls if call.layer != self.head.name]
        if not others or self.reading is None:
            return None
        tracked = self.directions()
        return dot_directions(others, self.spaces, {call.layer: self._stacked(call.layer, tracked) for call in others})

    def sketch(self, rows: GradientRows) -> Tensor:
        """What the head sees of each example, as signs ``[B, 256]``, without host synchronisation."""
        return self.likeness.signs(pool_positions(rows)[0])

    def pooled_features(self, calls: Sequence[LayerCapture]) -> Tensor:
        """What the head sees of each example, over positions and with the bias's one, ``[B, D]``."""
        return pool_positions(self.head_rows(calls))[0]

    def directions(self) -> dict[str, Tensor]:
        """``φ`` by layer: tracked, or solved at the last refresh."""
        self._catch_up()
        return self._directions()

    def _directions(self) -> dict[str, Tensor]:
        return self.tracker.directions if self.refinement.directions is None else self.refinement.directions

    @property
    def reading(self) -> GateReading | None:
        """How far the directions are trusted, as of the last step."""
        self._catch_up()
        return self._reading

    def head_rows(self, calls: Sequence[LayerCapture]) -> GradientRows:
        """The head's rows of a batch."""
        return self.spaces[self.head.name].rows(self._head_call(calls))

    def _head_call(self, calls: Sequence[LayerCapture]) -> LayerCapture:
        (call,) = [c for c in calls if c.layer == self.head.name]
        return call

    # Updating: once per optimiser step.

    def measure(self, calls: Sequence[LayerCapture]) -> None:
        """Keep this micro-batch to be looked at for its curvature; where much is kept, it is looked at."""
        self._observed.add(list(rows_by_layer(calls, self.spaces).values()))
        if self._observed.nbytes > MOST_OBSERVED:
            self._observed.measure(self.curvature)

    def note_gradient(self, calls: Sequence[LayerCapture]) -> None:
        """Add this micro-batch to the step's mean gradient, where the gate looks at its norm."""
        if self.gate.needs_gradient:
            self._gradient.add(calls, self.spaces)

    @property
    def observed_steps(self) -> int:
        """Steps whose curvature waits to be absorbed."""
        return self._observed.num_steps

    def absorb(self) -> None:
        """Take in the curvature of all micro-batches kept since the last time; directions follow it from here on."""
        if self._observed.num_steps:
            self._catch_up()  # by the operator of the steps that are due
            observed, self._observed = self._observed, ObservedRows()
            statistics = reduce_curvature(self.peers, observed.measure(self.curvature))
            self.curvature.absorb(statistics, observed.num_steps)
            operator = self.curvature.operator()
            self.tracker.use_operator(operator)
            if self.gate.needs_condition:
                self.gate.observe_condition(*extreme_ritz(operator, random_columns(operator), _LANCZOS_STEPS))

    def refresh(
        self,
        model: nn.Module,
        capture: Capture,
        forward: Callable[[Any], Tensor],
        losses: Callable[[Tensor, Tensor], Tensor],
    ) -> AnchorDraw:
        """Draw hold-out examples and renew everything that depends on them; nothing, where none gave numbers."""
        self.settle()
        positions = self.holdout.next_positions(self.anchors.per_refresh)
        mine, place = self.peers.share_of(positions), self.holdout.position
        with keep_sharded(model), collect_parameters(self.head) as seen:
            # a sharded model's pass is a collective of the training's own, so nobody begins it unless all do
            draw = self.anchors.look(model, capture, forward, losses, mine, lambda: self.peers.check_in_sync(place))
        if self.is_sharded:
            self._seen_head = seen
        with torch.no_grad():
            all_at = send(positions, self.holdout.device)
            draw = gather_draw(self.peers, draw, all_at, self.holdout.labels[all_at]).finite()
            self.holdout_not_finite += len(positions) - len(draw.positions)
            if not len(draw.positions):
                return draw
            if self.replacement.is_on and self._reading is not None:
                self._replace_anchors(draw)
            self.anchors.absorb(draw)
            self.tracker.retarget(self.anchors.gradients)
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
                if not self._uses_near:
                    self.solved = self.curvature.solve(self.anchors.gradients)
                if self.settings.solver == "direct":
                    self.refinement.directions = self.solved
                else:
                    self._refine()
            if len(self.features):
                self.features[draw.positions] = features.to(self.features.dtype)
                self.seen[draw.positions] = 1.0
            if self.class_anchors is not None:
                output_grads = pool_positions(head_rows)[1]
                self.class_anchors.update(draw.positions, output_grads, self.features, self.anchors.trust)
                inverse = self.curvature.factorise(self.head.name).inverse if self.tracker.is_ready else None
                self.class_anchors.use_inverse(inverse if isinstance(inverse, KroneckerInverse) else None)
            if self.settings.probe:
                trust = self.seen * self.anchors.trust
                self.probe_weight = self._head_refit.renew(
                    self.features, self.holdout.labels, self.head_weight(), trust
                )
        return draw

    def _refine(self) -> None:
        operator, goal = self.curvature.operator(), self.anchors.gradients
        self.refinement.renew(operator, goal, self.tracker, self._reading, self.peers, self._shapes)

    def _replace_anchors(self, draw: AnchorDraw) -> None:
        """Let anchors that are to be replaced be made of this draw alone, and their directions start again."""
        assert self._reading is not None and isinstance(self.tracker, Tracker)
        trust = self.anchors.trust[draw.positions]
        drawn = torch.bincount(draw.labels, weights=trust, minlength=self.anchors.num_anchors) > 0
        chosen = self.replacement.choose(self._reading.confidence, self.tracker.columns, drawn)
        self.anchors.forget(chosen)
        self.tracker.forget(chosen)

    def _note_anchors(self) -> None:
        """Keep for the steps what changes at refreshes only."""
        self.gradient_size, self._solved_total = norm(self.anchors.gradients), None  # |g_v|
        self._known = KnownAnchors.of(self.anchors.known, self.dtype)

    def head_weight(self) -> Tensor:
        """The head's weights with the bias column, ``[C, I]``: the current ones, sharded those of the last refresh."""
        return self.head.block(self._whole_head())[0].to(self.dtype)  # [C, I]

    def _whole_head(self) -> dict[str, Tensor]:
        return self._seen_head or {name: value.detach() for name, value in self.head.parameters.items()}

    def advance(self, learning_rate: float, weight_decay: float) -> None:
        """End a step: one product per anchor is due, and the gate's reading of what is left."""
        self._observed.end_step()
        if not self.tracker.is_ready:
            return
        if self._reading is None:  # what is queued was met by no direction
            self.settle()
        size = self._gradient.take_norm(self.peers)
        if size is not None:
            self.gate.observe_gradient(size)
        self._due.append((learning_rate, weight_decay))
        self._queued_bytes += self.tracker.step_bytes
        if not self._queues or self._queued_bytes > MOST_QUEUED:
            self.settle()

    def _catch_up(self) -> None:
        """Take all steps that are due, and remember the directions that were met on the way."""
        due, self._due = self._due, []
        if not due:
            return
        before = self._waypoint()
        met: tuple[Sequence[Tensor | PooledPoint], Tensor] = self.tracker.advance(len(due))
        steps, residuals = met
        if self.refinement.directions is not None:
            residuals = self.refinement.residual.expand_as(residuals)
        reading, confidences = self.gate.read_steps(residuals, self.anchors.noise, self.gradient_size, due)
        if self.pooled and self.settings.gate_settings.mode == "relative":
            # The pooled gradient is easiest to follow while the network knows nothing: its residual was smallest in
            # the second of 12 epochs (CIFAR-100). So a visit counts by how much of the hold-out the network knows.
            confidences = confidences * self.agreement.square()
        self._reading = replace(reading, confidence=confidences[-1])
        self._path.append(before)
        for step, confidence in zip(steps[:-1], confidences.unbind(0)):
            if isinstance(step, Tensor):
                step = unflatten(step, self._shapes)[self.head.name]
            self._path.append(Waypoint(step if self.refinement.directions is None else before.directions, confidence))

    def own_state(self) -> dict[str, Any]:
        """What only this process holds: the rows whose curvature waits."""
        return {"observed": self._observed.state_dict()}

    def load_own(self, state: Mapping[str, Any]) -> None:
        """Take over from a process of the run that is continued."""
        self._observed.load_state_dict(state["observed"])

    def state_dict(self) -> dict[str, Any]:
        """All that later scores depend on, beside what each process holds for itself."""
        self.settle()
        reading, head = self._reading, self._seen_head if self.is_sharded else self._whole_head()
        return {
            "anchors": self.anchors.state_dict(),
            "curvature": self.curvature.state_dict(),
            "tracker": self.tracker.state_dict(),
            "gate": self.gate.state_dict(),
            "reading": None if reading is None else {k: getattr(reading, k).clone() for k in _READING},
            "agreement": self.agreement.clone(),
            "observed_steps": self._observed.num_steps,
            "draws": self.draws,
            "holdout_not_finite": self.holdout_not_finite,
            "features": self.features.clone(),
            "seen": self.seen.clone(),
            "predicted": self.predicted.clone(),
            "probe_weight": None if self.probe_weight is None else self.probe_weight.clone(),
            "head_refit": self._head_refit.state_dict(),
            "class_anchors": None if self.class_anchors is None else self.class_anchors.state_dict(),
            "likeness": self.likeness.state_dict(),
            "solved": self.solved,
            "refinement": self.refinement.state_dict(),
            "replacement": self.replacement.state_dict(),
            "seen_head": None if head is None else {name: value.clone() for name, value in head.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where another engine with the same settings stood."""
        self.anchors.load_state_dict(state["anchors"])
        self.curvature.load_state_dict(state["curvature"])
        self.tracker.retarget(self.anchors.gradients)
        self.tracker.load_state_dict(state["tracker"])
        if self.curvature.counters.observations:
            self.tracker.use_operator(self.curvature.operator())
        self.gate.load_state_dict(state["gate"])
        self.agreement, self.draws = state["agreement"].to(self.agreement), int(state["draws"])
        self.holdout_not_finite = int(state["holdout_not_finite"])
        reading = state["reading"]
        self._reading = None if reading is None else GateReading(**reading)
        self._due, self._path = [], []
        self._observed = ObservedRows(int(state["observed_steps"]))
        self.features, self.seen = state["features"].to(self.features), state["seen"].to(self.seen)
        self.predicted = state["predicted"].to(self.predicted)
        self.probe_weight, self.solved = state["probe_weight"], state["solved"]
        self.refinement.load_state_dict(state["refinement"])
        self.replacement.load_state_dict(state["replacement"])
        self._head_refit.load_state_dict(state["head_refit"])
        if self.is_sharded:
            self._seen_head = state["seen_head"]
        self._note_anchors()
        if self.class_anchors is not None:
            self.class_anchors.load_state_dict(state["class_anchors"])
        self.likeness.load_state_dict(state["likeness"])


_READING = ("residual", "noise", "tau", "confidence", "beta", "gamma")
