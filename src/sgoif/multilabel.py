"""The front door for tags: from a model and a multi-label hold-out to a monitor, and from a monitor to a run."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sgoif.distributed import find_peers
from sgoif.errors import SgoifError
from sgoif.evidence import Sketches
from sgoif.finish import save_run
from sgoif.gradients import Layer, find_head
from sgoif.gradients.models import check_class_names, default_forward, plain_model, refuse_compiled, refuse_in_pieces
from sgoif.influence.holdout import MultilabelHoldOut
from sgoif.inputs.overlap import refuse_overlap
from sgoif.run import Run
from sgoif.settings import Settings, describe_changes, make_governor
from sgoif.tasks.multilabel import example_losses
from sgoif.training.base import WatchedLoop
from sgoif.training.multilabel.audit import audit_examples
from sgoif.training.multilabel.calibration import MultilabelCalibration, calibrate_multilabel
from sgoif.training.multilabel.engine import MultilabelEngine
from sgoif.training.multilabel.ledger import MultilabelLedger
from sgoif.training.multilabel.monitor import MultilabelMonitor
from sgoif.training.multilabel.recorder import MultilabelRecorder
from sgoif.training.schedule import Plan
from sgoif.training.sinks import ScoreSink
from sgoif.types import Columns

__all__ = [
    "GivenHoldout",
    "audit_multilabel",
    "collect_multilabel",
    "empty_multilabel",
    "finish_multilabel",
    "watch_multilabel",
]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GivenHoldout:
    """The hold-out as :func:`sgoif.watch` and :func:`sgoif.audit` are given it."""

    anchors: Any
    class_names: Sequence[str] | None
    is_trusted: bool
    seed: int  # of its order

    def facts(self) -> dict[str, Any]:
        """What a run's information keeps."""
        return {"trusted": self.is_trusted, "class_names": list(self.class_names or []), "seed": self.seed}


def watch_multilabel(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    settings: Settings,
    given: GivenHoldout,
    *,
    train_size: int,
    sink: ScoreSink | None,
    forward: Callable[[Any], Tensor] | None,
) -> MultilabelMonitor:
    """Watch a multi-label training; the arguments are those of :func:`sgoif.watch`, targets are ``[B, C]``."""
    _refuse_changes(settings)
    loss = settings.loss if settings.loss.per_example else replace(settings.loss, per_example=example_losses)
    wrapped, model = model, plain_model(model)
    if not find_peers(wrapped).is_alone:
        raise SgoifError("task='multilabel' watches one process so far; audit the model that several trained.")
    device = next(model.parameters()).device
    run_forward = forward or default_forward(model)
    holdout = MultilabelHoldOut(given.anchors, seed=given.seed, device=device)
    head = _head_of(model, run_forward, holdout, settings.method.head, given.class_names)
    start = settings.budget.plan or Plan()
    engine = MultilabelEngine(head, holdout, per_refresh=start.examples_per_refresh)
    governor, facts = make_governor(settings.budget, device), given.facts() | {"train_size": train_size}
    return MultilabelMonitor(
        WatchedLoop(model, optimizer, run_forward, loss, governor, facts),
        engine,
        recorder=MultilabelRecorder(holdout.num_tags),
        ledger=MultilabelLedger(engine, trusted=given.is_trusted, seed=given.seed),
        train_size=train_size,
        sink=sink,
        on_close=finish_multilabel,
    )


def audit_multilabel(
    model: nn.Module,
    dataset: Any,
    settings: Settings,
    given: GivenHoldout,
    *,
    sink: ScoreSink | None,
    forward: Callable[[Any], Tensor] | None,
    batch_size: int,
) -> Run:
    """Judge the tags of every training example by a finished model, in one pass; see :func:`sgoif.audit`."""
    _refuse_changes(settings, are_losses_own=True)
    model = plain_model(model)
    device = next(model.parameters()).device
    run_forward = forward or default_forward(model)
    holdout = MultilabelHoldOut(given.anchors, seed=given.seed, device=device)
    examples = MultilabelHoldOut(dataset, seed=given.seed, device=device, role="dataset")
    refuse_overlap(holdout.examples, examples.examples)
    head = _head_of(model, run_forward, holdout, settings.method.head, given.class_names)
    engine = MultilabelEngine(head, holdout, per_refresh=batch_size, horizon=math.inf)
    recorder, ledger = (
        MultilabelRecorder(holdout.num_tags),
        MultilabelLedger(engine, trusted=given.is_trusted, seed=given.seed),
    )
    audit_examples(model, engine, examples, run_forward, recorder, ledger, batch_size)
    facts = {"kind": "audit", **given.facts(), "head": engine.head.name}
    return collect_multilabel(recorder, ledger, engine, sink, facts)


def _head_of(
    model: nn.Module,
    forward: Callable[[Any], Tensor],
    holdout: MultilabelHoldOut,
    name: str | None,
    class_names: Sequence[str] | None,
) -> Layer:
    few = holdout.inputs(torch.arange(min(2, len(holdout))))
    found = find_head(model, lambda: forward(few), name=name)
    refuse_compiled(model, found.module_name)
    refuse_in_pieces(found)
    if found.shape.outputs != holdout.num_tags:
        raise SgoifError(f"the model has {found.shape.outputs} outputs, but the hold-out {holdout.num_tags} tags.")
    check_class_names(class_names, found.shape.outputs)
    return found


def _refuse_changes(settings: Settings, *, are_losses_own: bool = False) -> None:
    """Raise for settings that tags have not: what is asked for must not be ignored."""
    of_loss = () if are_losses_own else ("per_example", "reduction", "accumulate", "scaler")
    allowed = {"loss": of_loss, "method": ("head",), "budget": ("max_overhead", "plan")}
    changed = describe_changes(settings, allowed)
    if changed:
        raise SgoifError(f"task='multilabel' has no {', '.join(changed)}; leave it out.")


def empty_multilabel() -> Run:
    """The run of a monitor that is switched off."""
    recorder = MultilabelRecorder(1)
    info = {"disabled": True, "task": "multilabel", "num_examples": 0, "num_not_judged": 0}
    tags = recorder.tags() | {f"p_wrong{tail}": np.zeros(0) for tail in ("", "_low", "_high")}
    examples = recorder.example_rows()[1] | {f"p_mislabeled{tail}": np.zeros(0) for tail in ("", "_low", "_high")}
    return save_run(None, info, {"examples": examples | {"no_p_reason": np.zeros(0, object)}, "tags": tags})


def finish_multilabel(monitor: MultilabelMonitor) -> Run:
    """Add up what a monitor recorded and write the run down."""
    facts = {
        "kind": "watch",
        **monitor.facts,
        "counters": monitor.counters,
        "faults": dict(monitor.faults),
        "overhead": monitor.governor.overhead,
        "overhead_by_part": monitor.governor.shares,
        "plan": asdict(monitor.plan),
        "plan_changes": monitor.governor.changes,
        "head": monitor.engine.head.name,
    }
    return collect_multilabel(monitor.recorder, monitor.ledger, monitor.engine, monitor.sink, facts, monitor.sketches)


def collect_multilabel(
    recorder: MultilabelRecorder,
    ledger: MultilabelLedger,
    engine: MultilabelEngine,
    sink: ScoreSink | None,
    facts: dict[str, Any],
    sketches: Sketches | None = None,
) -> Run:
    """One row per kept pair with ``p_wrong`` where the canaries allow it, and one per example."""
    tags, calibration = recorder.tags(), None
    absent, present = recorder.num_pairs
    held = engine.holdout.counts.tolist()
    facts = {**facts, "task": "multilabel", "num_absent": absent, "num_present": present, "num_pairs": len(tags["id"])}
    facts |= {"held_out": len(engine.holdout), "held_out_per_tag": held[1], "most_absent": engine.most_absent}
    try:
        calibration = calibrate_multilabel(ledger, tags)
    except Exception as error:
        facts["calibration_error"] = f"{type(error).__name__}: {error}"
    facts["no_p_reason"] = None if calibration is not None else _why_not(facts, ledger, tags)
    if calibration is None:
        log.warning("this run has no probabilities: %s. Its tags are ranked by loss.", facts["no_p_reason"])
    where, examples = recorder.example_rows()
    if calibration is not None:
        tags |= {"p_wrong": calibration.p_wrong, "p_wrong_low": calibration.p_low, "p_wrong_high": calibration.p_high}
        facts |= _calibration_facts(calibration, ledger)
        examples |= _any_wrong(tags, where, len(examples["id"]))
    else:
        tags |= {f"p_wrong{tail}": np.full(len(tags["id"]), np.nan) for tail in ("", "_low", "_high")}
        examples |= {f"p_mislabeled{tail}": np.full(len(examples["id"]), np.nan) for tail in ("", "_low", "_high")}
    why = facts["no_p_reason"] or "none of its tags was seen while the scores could be trusted"
    is_null = np.isnan(examples["p_mislabeled"])
    examples["no_p_reason"] = np.array([why if null else None for null in is_null], object)
    if sketches is not None:
        examples |= sketches.columns(examples["id"])
        facts["nearly_same"] = sketches.nearly_same
    info = {**facts, "num_examples": len(examples["id"]), "num_not_judged": int((examples["confidence"] <= 0).sum())}
    return save_run(sink, info, {"examples": examples, "tags": tags})


def _why_not(facts: dict[str, Any], ledger: MultilabelLedger, tags: Columns) -> str:
    if "calibration_error" in facts:
        return f"the calibration failed: {facts['calibration_error']}"
    if not np.isfinite(tags["loss"]).any():
        return "no training example was seen while the scores could be trusted"
    return "the hold-out was never looked at while the scores could be trusted, or has no tag both with and without it"


def _any_wrong(tags: Columns, where: NDArray[np.int64], count: int) -> Columns:
    """Probability that at least one tag of an example is wrong, were the pairs independent; NaN if none was judged."""
    found: Columns = {}
    for tail in ("", "_low", "_high"):
        p = tags[f"p_wrong{tail}"]
        is_known = np.isfinite(p)
        sound = np.bincount(where[is_known], np.log1p(-p[is_known].clip(0, 1 - 1e-9)), count)
        is_judged = np.bincount(where[is_known], minlength=count) > 0
        found[f"p_mislabeled{tail}"] = np.where(is_judged, -np.expm1(sound), np.nan)
    return found


def _calibration_facts(calibration: MultilabelCalibration, ledger: MultilabelLedger) -> dict[str, Any]:
    return {
        "expected_tag_errors": calibration.expected,
        "share_noticed": ledger.share_noticed(),
    }
