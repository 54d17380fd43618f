"""The front door for tags: from a model and a multi-label hold-out to a monitor, and from a monitor to a run."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sgoif.distributed import Peers
from sgoif.errors import SgoifError
from sgoif.finish import save_run, watch_facts
from sgoif.gradients import Layer, find_head
from sgoif.gradients.models import check_class_names, refuse_in_pieces
from sgoif.influence.holdout import MultilabelHoldOut
from sgoif.inputs.overlap import refuse_overlap
from sgoif.run import Run
from sgoif.settings import Request, make_governor, refuse_changes
from sgoif.tasks.multilabel import example_losses
from sgoif.training.audit import audit_multilabel_examples
from sgoif.training.base import WatchedLoop
from sgoif.training.multilabel.calibration import calibrate_multilabel
from sgoif.training.multilabel.engine import MultilabelEngine
from sgoif.training.multilabel.ledger import MultilabelLedger
from sgoif.training.multilabel.monitor import MultilabelMonitor
from sgoif.training.multilabel.recorder import MultilabelRecorder
from sgoif.training.schedule import Plan
from sgoif.training.sinks import ScoreSink
from sgoif.types import Columns

__all__ = ["audit_multilabel", "collect_multilabel", "empty_multilabel", "finish_multilabel", "watch_multilabel"]

log = logging.getLogger(__name__)

_TAILS = ("", "_low", "_high")  # of columns with a probability and its interval
_METHOD = {"curvature": "kfac-diagonal", "curvature_settings": {}, "solver": "direct", "gate": "explained"}
_ALLOWED = {
    "loss": ("per_example", "reduction", "accumulate", "scaler"),
    "method": ("head",),
    "budget": ("max_overhead", "plan"),
}


def watch_multilabel(
    request: Request,
    peers: Peers,
    optimizer: torch.optim.Optimizer | None,
    *,
    train_size: int,
    sink: ScoreSink | None,
) -> MultilabelMonitor:
    """Watch a multi-label training; see :func:`sgoif.watch`. Targets are ``[B, C]``."""
    settings = request.settings
    refuse_changes(settings, "multilabel", _ALLOWED)
    if not peers.is_alone:
        raise SgoifError("task='multilabel' watches one process so far; audit the model that several trained.")
    loss = settings.loss if settings.loss.per_example else replace(settings.loss, per_example=example_losses)
    holdout = MultilabelHoldOut(request.anchors, seed=request.seed, device=request.device)
    start = settings.budget.plan or Plan()
    engine = MultilabelEngine(_head_of(request, holdout), holdout, per_refresh=start.examples_per_refresh)
    governor, facts = make_governor(settings.budget, request.device), request.facts | {"train_size": train_size}
    return MultilabelMonitor(
        WatchedLoop(request.model, optimizer, request.forward, loss, governor, facts, is_compiled=request.is_compiled),
        engine,
        recorder=MultilabelRecorder(holdout.num_tags),
        ledger=MultilabelLedger(engine, trusted=request.trusted, seed=request.seed),
        train_size=train_size,
        sink=sink,
        on_close=finish_multilabel,
    )


def audit_multilabel(request: Request, dataset: Any, *, sink: ScoreSink | None, batch_size: int) -> Run:
    """Judge the tags of every training example by a finished model, in one pass; see :func:`sgoif.audit`."""
    refuse_changes(request.settings, "multilabel", {**_ALLOWED, "loss": ()})  # its losses are its own
    holdout, examples = (
        MultilabelHoldOut(source, seed=request.seed, device=request.device, role=role)
        for source, role in ((request.anchors, "anchors="), (dataset, "dataset"))
    )
    refuse_overlap(holdout.examples, examples.examples)
    head = _head_of(request, holdout)
    engine = MultilabelEngine(head, holdout, per_refresh=batch_size, horizon=math.inf)
    recorder = MultilabelRecorder(holdout.num_tags)
    ledger = MultilabelLedger(engine, trusted=request.trusted, seed=request.seed)
    audit_multilabel_examples(request.model, request.forward, examples, engine, recorder, ledger)
    facts = {"kind": "audit", **request.facts, "head": head.name}
    return collect_multilabel(recorder, ledger, engine, sink, facts)


def _head_of(request: Request, holdout: MultilabelHoldOut) -> Layer:
    few = holdout.inputs(torch.arange(min(2, len(holdout))))
    found = find_head(request.model, lambda: request.forward(few), name=request.settings.method.head)
    refuse_in_pieces(found)
    if found.shape.outputs != holdout.num_tags:
        raise SgoifError(f"the model has {found.shape.outputs} outputs, but the hold-out {holdout.num_tags} tags.")
    check_class_names(request.class_names, found.shape.outputs)
    return found


def empty_multilabel() -> Run:
    """The run of a monitor that is switched off."""
    recorder = MultilabelRecorder(1)
    info = {"disabled": True, "task": "multilabel", "num_examples": 0, "num_not_judged": 0}
    tags = recorder.tags() | {f"p_wrong{tail}": np.zeros(0) for tail in _TAILS}
    examples = recorder.example_rows()[1] | {f"p_mislabeled{tail}": np.zeros(0) for tail in _TAILS}
    return save_run(None, info, {"examples": examples | {"no_p_reason": np.zeros(0, object)}, "tags": tags})


def finish_multilabel(monitor: MultilabelMonitor) -> Run:
    """Add up what a monitor recorded and write the run down."""
    facts = watch_facts(monitor)
    return collect_multilabel(monitor.recorder, monitor.ledger, monitor.engine, monitor.sink, facts)


def collect_multilabel(
    recorder: MultilabelRecorder,
    ledger: MultilabelLedger,
    engine: MultilabelEngine,
    sink: ScoreSink | None,
    facts: dict[str, Any],
) -> Run:
    """One row per kept pair with ``p_wrong`` where the canaries allow it, and one per example."""
    tags, calibration = recorder.tags(), None
    absent, present = recorder.num_pairs
    held = engine.holdout.counts.tolist()
    facts = {**facts, "task": "multilabel", "num_absent": absent, "num_present": present, "num_pairs": len(tags["id"])}
    facts["method"] = _METHOD | {"layers": [engine.head.name]}
    facts |= {"held_out": len(engine.holdout), "held_out_per_tag": held[1], "most_absent": engine.most_absent}
    try:
        calibration = calibrate_multilabel(ledger, tags)
    except Exception as error:
        facts["calibration_error"] = f"{type(error).__name__}: {error}"
    facts["no_p_reason"] = None if calibration is not None else _why_not(facts, ledger, tags)
    if calibration is None:
        log.warning("this run has no probabilities: %s. Its tags are ranked by loss.", facts["no_p_reason"])
    where, examples = recorder.example_rows()
    found = np.full((3, len(tags["id"])), np.nan)
    if calibration is not None:
        found[:] = calibration.p_wrong, calibration.p_low, calibration.p_high
        facts |= {"expected_tag_errors": calibration.expected, "share_noticed": ledger.share_noticed()}
    tags |= {f"p_wrong{tail}": p for tail, p in zip(_TAILS, found)}
    examples |= _any_wrong(tags, where, len(examples["id"]))
    why = facts["no_p_reason"] or "none of its tags was seen while the scores could be trusted"
    is_null = np.isnan(examples["p_mislabeled"])
    examples["no_p_reason"] = np.array([why if null else None for null in is_null], object)
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
    for tail in _TAILS:
        p = tags[f"p_wrong{tail}"]
        is_known = np.isfinite(p)
        sound = np.bincount(where[is_known], np.log1p(-p[is_known].clip(0, 1 - 1e-9)), count)
        is_judged = np.bincount(where[is_known], minlength=count) > 0
        found[f"p_mislabeled{tail}"] = np.where(is_judged, -np.expm1(sound), np.nan)
    return found
