"""What a plan would cost on a machine that is not here, from shapes: shares of the bare training step, and memory.

The bare step is estimated from the operators of one forward pass, the monitor's work from the sizes of the head, the
hold-out and the batch. Both are priced at assumed speeds. Expect the right order, not the right digit: on this machine
it was 0.24 to 1.07 of what was measured. What a hold-out dataset takes to load and transform its examples is not in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from benchmarks.work import Speed, Work
from sgoif.evidence import SKETCH_BITS
from sgoif.influence import MOST_PROJECTED, MOST_REFIT_WORK, refit_every
from sgoif.influence.class_anchors import GATHER_ABOVE, ROWS
from sgoif.influence.near_outputs import ALL_UP_TO, NEAR
from sgoif.influence.pooled_tracker import RANK
from sgoif.records import SIGNALS
from sgoif.training.engine import MOST_QUEUED
from sgoif.training.holdout_scores import HOLDOUT_SIGNALS, LOOK_EVERY, LOOK_FROM
from sgoif.training.schedule import Plan

__all__ = ["Price", "Sizes", "price"]

# Of the forward pass: backward is twice its operations; it also re-reads what forward kept, and BatchNorm and the
# optimiser pass over memory again. Fitted to six networks, small to ResNet-18-like, within 0.6-1.1 of their steps.
_STEP = Work(flops=3.0, bytes=6.0, launches=12.0)
_AROUND = 3.5  # what Python and autograd add to an operator, in tiny operators: a scored step's take 10 us, one takes 3
# Operators of the monitor's parts, counted once.
_QUEUE, _SETTLE, _STEP_AGAIN, _OBSERVE, _ABSORB, _REFRESH = 10, 200, 12, 5, 150, 750
_PASSES = 20  # times that the factors are read or written when curvature is absorbed
_ROW_PASSES = 8  # over the rows of an observed batch, from which examples that are not finite are left out
_RECORD, _SCORE_HOLDOUT = 90, 1400  # the host's own work, in operators of the same price: 1 ms a step, 14 ms a refresh
_REFIT_ITERATIONS = 15
_NEAR, _ROWS_PER_CLASS = 6, ROWS + 1  # above 64 classes: classes looked at per example, and rows kept of each
_MB = 2.0**20


@dataclass(frozen=True, slots=True)
class Sizes:
    """All shapes that the cost depends on, apart from plan and batch."""

    outputs: int  # C, of the head
    inputs: int  # I, of the head
    numel: int  # of all scored layers
    anchors: int  # directions held: one per class, or one
    holdout: int
    train_size: int
    accumulate: int
    itemsize: int  # of the engine's numbers
    curvature_bytes: int
    bytes_per_example: int  # of evidence
    scores_holdout: bool  # whether the hold-out is scored, too, fold against fold
    has_probe: bool
    ranks: int = 1  # processes that share the pass over the hold-out

    @property
    def is_pooled(self) -> bool:
        """Whether classes are too many for a direction each."""
        return self.anchors == 1

    @property
    def uses_near(self) -> bool:
        """Whether outputs are so many that the largest entries of a gradient must do."""
        return self.is_pooled and self.outputs > ALL_UP_TO

    @property
    def num_projected(self) -> int:
        """Features that a sketch multiplies."""
        return min(self.inputs, MOST_PROJECTED)

    @property
    def outputs_factored(self) -> int:
        """Outputs whose products with one another curvature keeps; above 64 classes it keeps a diagonal."""
        return 0 if self.is_pooled else self.outputs


@dataclass(frozen=True, slots=True)
class Price:
    """What a plan would cost. Shares are of the bare training step."""

    bare_s: float  # seconds of a bare step
    step_share: float  # scoring and moving the directions on
    curvature_share: float
    refresh_share: float
    device_mb: float  # anchors, directions, curvature, cached hold-out rows, visits that wait for a refresh
    host_mb: float  # evidence of every training example, and of the hold-out

    @property
    def total_share(self) -> float:
        return self.step_share + self.curvature_share + self.refresh_share


def price(plan: Plan, sizes: Sizes, model: Work, speed: Speed, batch_size: int, model_speed: Speed) -> Price:
    """Price a plan.

    Args:
        plan: what is done when.
        sizes: of everything held.
        model: one example's forward pass (its launches: one batch's).
        speed: in the engine's precision.
        batch_size: examples of an optimiser step, all micro-batches together.
        model_speed: in the precision that the model trains in.
    """
    shown = min(plan.examples_per_refresh, sizes.holdout)
    launches = _STEP.launches * model.launches * sizes.accumulate * _AROUND
    bare = model_speed.seconds(
        Work(_STEP.flops * model.flops * batch_size, _STEP.bytes * model.bytes * batch_size, launches)
    )
    here = ceil(shown / sizes.ranks)
    look = model_speed.seconds(Work(model.flops * here, model.bytes * here, model.launches * _AROUND))
    seconds = {name: speed.seconds(work) for name, work in _work_per_step(plan, sizes, batch_size).items()}
    return Price(
        bare_s=bare,
        step_share=seconds["scoring"] / bare,
        curvature_share=seconds["curvature"] / bare,
        refresh_share=(seconds["refresh"] + look / plan.refresh_every) / bare,
        device_mb=_device_bytes(plan, sizes, batch_size) / _MB,
        host_mb=_host_bytes(sizes) / _MB,
    )


def _work_per_step(plan: Plan, sizes: Sizes, batch_size: int) -> dict[str, Work]:
    """What the monitor computes in a step on average, by part; the forward pass over the hold-out is not in it."""
    shown = min(plan.examples_per_refresh, sizes.holdout)
    return {
        "scoring": 1 / plan.stride * _score(sizes, batch_size) + _advance(sizes) + _settle(plan),
        "curvature": _curvature(plan, sizes, batch_size),
        "refresh": 1 / plan.refresh_every * _refresh(plan, sizes, shown),
    }


def _operators(count: float) -> Work:
    return Work(launches=count * _AROUND)


def _score(s: Sizes, batch: int) -> Work:
    """Products with tracked, plain and solved directions, near classes, the re-fitted head, the sketch."""
    outputs = NEAR if s.uses_near else s.outputs  # that a product of an example with a direction goes over
    flops = 2.0 * batch * 3 * s.anchors * s.numel * outputs / s.outputs
    moved = 2.0 * 3 * s.anchors * s.numel  # the directions, laid side by side
    if s.uses_near:
        moved = 3.0 * 4 * batch * NEAR * s.inputs  # gathered and multiplied: goal, start, g, the re-fitted head
    if s.is_pooled:
        is_gathered = s.outputs > GATHER_ABOVE
        rows = _ROWS_PER_CLASS * (_NEAR if is_gathered else s.outputs)
        flops += 2.0 * batch * (s.inputs * (s.inputs + 2 * rows) + RANK * (s.inputs + 2 * outputs))
        moved += 3.0 * batch * rows * s.inputs if is_gathered else float(rows * s.inputs)
    if s.has_probe:
        flops += 2.0 * batch * outputs * s.inputs
    flops += 2.0 * batch * s.num_projected * SKETCH_BITS
    moved += float(s.num_projected * SKETCH_BITS + 2 * batch * SKETCH_BITS)
    moved += 8.0 * batch * (s.inputs + 4 * s.outputs + len(SIGNALS))
    return Work(flops, moved * s.itemsize) + _operators(_QUEUE * s.accumulate)


def _settle(plan: Plan) -> Work:
    """What scoring the steps since a refresh together takes, whatever their number."""
    return 1 / plan.refresh_every * _operators(_SETTLE)


def _advance(s: Sizes) -> Work:
    """One product with the curvature for every direction; where there is one for all classes, a number for each."""
    if s.is_pooled:
        return Work(6.0 * s.outputs * RANK, 10.0 * s.outputs * RANK * s.itemsize) + _operators(_STEP_AGAIN)
    flops = 2.0 * s.anchors * s.numel * (s.inputs + s.outputs_factored)
    return Work(flops, 10.0 * s.anchors * s.numel * s.itemsize) + _operators(_STEP_AGAIN)


def _curvature(plan: Plan, s: Sizes, batch: int) -> Work:
    """Both factors' outer products; at refreshes the averages, and a few steps towards their largest eigenvalues."""
    sides = s.inputs**2 + s.outputs_factored**2
    rows = float(_ROW_PASSES * 4 * batch * (s.inputs + s.outputs))
    observed = Work(2.0 * batch * sides, rows) + _operators(_OBSERVE * s.accumulate)
    absorbed = Work(6.0 * sides, float(_PASSES * s.curvature_bytes)) + _operators(
        _ABSORB / 2 if s.is_pooled else _ABSORB
    )
    return 1 / plan.observe_every * observed + 1 / plan.refresh_every * absorbed


def _refresh(plan: Plan, s: Sizes, shown: int) -> Work:
    """All but the hold-out's forward pass: anchors, solves, the re-fitted head, own scores, and the waiting visits."""
    flops = 2.0 * shown * (s.anchors + 2) * s.numel
    sides = s.inputs, s.outputs_factored
    flops += sum(3.0 * n**3 for n in sides) + (0.0 if s.uses_near else 8.0 * s.anchors * s.numel * sum(sides))
    if s.is_pooled:
        flops += 2.0 * RANK * s.inputs * (2 * s.inputs + 5 * s.outputs)
    work = _operators(_REFRESH + _RECORD * s.accumulate * plan.refresh_every / plan.stride)
    looks = 0.0 if not s.scores_holdout else 1 / LOOK_EVERY if s.outputs > LOOK_FROM else 1.0
    if s.has_probe:
        rows = min(s.holdout, MOST_REFIT_WORK // (s.inputs * s.outputs))
        fits = (1 + looks) / refit_every(s.holdout, s.inputs * s.outputs)  # of the whole, and of its folds
        per_fit = 4.0 * rows * s.inputs * s.outputs + 2.0 * s.inputs**2 * s.outputs
        flops += fits * (_REFIT_ITERATIONS * per_fit + 2.0 * rows * s.inputs**2 + s.inputs**3)
    if s.scores_holdout:
        flops += looks * 4.0 * shown * (s.inputs + s.outputs) * len(HOLDOUT_SIGNALS)
        work = work + looks * _operators(_SCORE_HOLDOUT)
    return work + Work(flops)


def _device_bytes(plan: Plan, s: Sizes, batch: int) -> float:
    directions = (5 if s.is_pooled and not s.uses_near else 4) * s.anchors * s.numel  # g twice, tracked, solved
    a_step = s.outputs * RANK if s.is_pooled else s.anchors * s.numel  # to remember it
    features = s.inputs / 2 if s.is_pooled else s.inputs  # then in half the bytes
    cached = s.holdout * (features + 3 * _ROWS_PER_CLASS) if s.has_probe or s.is_pooled else 0
    cached += _ROWS_PER_CLASS * s.outputs * s.inputs if s.is_pooled else 0
    fitted = 2 * s.outputs * s.inputs if s.has_probe else 0
    visits = batch * plan.refresh_every / plan.stride
    waiting = visits * (len(SIGNALS) + 4)  # two of ids and labels each
    queued = min(batch * (s.inputs + 2 * s.outputs) + a_step, MOST_QUEUED // s.itemsize)
    waiting += min(plan.refresh_every * queued, MOST_QUEUED // s.itemsize)
    sketching = s.num_projected * SKETCH_BITS  # its directions; a waiting sign takes a byte
    inverse = s.curvature_bytes if s.is_pooled else 0
    # curvature: the averages, the damped operator that is tracked, and the factors of the last solve
    held = (directions + cached + fitted + waiting + sketching) * s.itemsize + visits * SKETCH_BITS
    return held + 3.0 * s.curvature_bytes + inverse


def _host_bytes(s: Sizes) -> float:
    held = 8.0 * (len(HOLDOUT_SIGNALS) + 1) if s.scores_holdout else 0.0  # sums and their weight
    return float(s.train_size * s.bytes_per_example) + held * s.holdout
