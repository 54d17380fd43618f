"""A snapshot of a model as it is now: the whole hold-out is judged anew, fold against fold, as an audit does.

A monitor's own directions follow the model with a lag and its canaries are means over the run; what is scored later
meets the model of this moment alone, so that directions and canaries must be of this moment too.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sgoif.errors import SgoifError
from sgoif.evidence import Canaries, KeptPredictions, LargestPredictions, hash_ids, read_noise
from sgoif.gradients.fingerprint import hash_weights
from sgoif.snapshot.snapshot import About, Snapshot
from sgoif.store.info import environment, now
from sgoif.tasks.classification import logit_gradients
from sgoif.training.audit import AuditPart, audit_engine, judge_holdout
from sgoif.training.calibration import judge_labels
from sgoif.training.canaries import CALIBRATED_SIGNALS, CanaryLedger
from sgoif.training.engine import Engine
from sgoif.training.losses import HoldoutPass, Losses
from sgoif.training.monitor import Monitor
from sgoif.training.recorder import Recorder

__all__ = ["is_cross_entropy", "snapshot_audit", "snapshot_of", "take_snapshot"]


def take_snapshot(monitor: Monitor, seen: HoldoutPass) -> Snapshot:
    """Judge a monitor's hold-out by the model as it is, in eval mode, and keep what judges.

    Costs a forward pass over the hold-out, two where it cleans itself. Model and monitor are left as found: later
    scores are those that would have been without.

    Raises:
        SgoifError: No step was scored yet.
    """
    watched, ledger = monitor.engine, None
    if not watched.tracker.is_ready:
        raise SgoifError("a snapshot needs curvature, which the first scored steps show; take it after them.")
    holdout = copy.copy(watched.holdout)  # with a place of its own in the round over the examples
    holdout.position = 0
    settings = watched.settings
    engine = audit_engine(
        watched.head,
        holdout,
        train_size=monitor.recorder.train_size,
        method=settings,
    )
    _copy_curvature(watched, engine)
    if monitor.ledger is not None and settings.probe:
        ledger = CanaryLedger(engine, verified=monitor.ledger.verified)
    part = AuditPart(monitor.model, engine, lambda: (), seen.forward, seen.losses)
    judge_holdout(part, ledger)
    return snapshot_of(
        monitor.model,
        engine,
        ledger,
        class_names=monitor.facts.get("class_names") or (),
        label_smoothing=monitor.loss.label_smoothing,
        is_cross_entropy=is_cross_entropy(seen.losses, watched, monitor.loss.label_smoothing),
        autocast=seen.autocast,
        step=monitor.step_count,
    )


def snapshot_audit(part: AuditPart, ledger: CanaryLedger, recorder: Recorder, class_names: Sequence[str]) -> Snapshot:
    """Keep what an audit judged by, adapted to the examples that it scored."""
    is_usual = is_cross_entropy(part.losses, part.engine)
    found = snapshot_of(part.model, part.engine, ledger, class_names=class_names, is_cross_entropy=is_usual)
    count = len(recorder.index)
    signals: dict[str, NDArray[Any]] = {name: recorder.means.mean(name)[:count] for name in recorder.means.signals}
    others = recorder.likely.top(count)  # of the one visit that an audit makes
    signals["runner_up"] = others.labels[:, 0]
    signals["worst_anchor"] = recorder.evidence.suggested_label(top=1).labels[:count, 0]
    return found.adapted(signals, recorder.given[:count])


def snapshot_of(
    model: nn.Module,
    engine: Engine,
    ledger: CanaryLedger | None,
    *,
    class_names: Sequence[str] = (),
    label_smoothing: float = 0.0,
    is_cross_entropy: bool = True,
    autocast: torch.dtype | None = None,
    step: int | None = None,
) -> Snapshot:
    """Keep what an audit's engine judges by, and its canaries, before they meet any training example."""
    competence = None if ledger is None else ledger.competence(engine)
    why = "the hold-out was not judged" if competence is None else competence.why_not
    canaries = None if ledger is None or why is not None else ledger.canaries(engine)
    if ledger is not None and canaries is None and why is None:
        why = ledger.why_none(engine)
    choice = None if ledger is None else ledger.choice
    is_trusted = ledger is not None and ledger.trusted
    ids = engine.holdout.ids
    about = About(
        weights=hash_weights(model),
        head=engine.head.module_name,
        has_bias=engine.head.shape.has_bias,
        num_classes=engine.head.shape.outputs,
        class_names=tuple(str(name) for name in class_names),
        label_smoothing=label_smoothing,
        is_cross_entropy=is_cross_entropy,
        autocast=None if autocast is None else str(autocast).removeprefix("torch."),
        trusted=is_trusted,
        cleaning=None if choice is None else asdict(choice),
        held_out_per_class=tuple(engine.holdout.counts.tolist()),
        competence=None if competence is None else asdict(competence),
        no_p_reason=why,
        step=step,
        made_with=environment()["libraries"],
        made=now(),
    )
    # positions of a hold-out that came without ids are nobody's ids
    held = np.zeros(0, np.int64) if isinstance(ids, range) else np.sort(hash_ids(np.asarray(ids)).view(np.int64))
    judge = copy.deepcopy(engine.judge())  # stays as it is when the engine goes on
    if ledger is None or canaries is None:
        return Snapshot(about, judge, canaries, held_out=held)
    predictions, doubted = ledger.predictions(), ledger.may_doubt(canaries)
    # as many errors as among the hold-out's own labels are expected, until training examples are seen
    noise = read_noise(_own_predictions(canaries, predictions), ledger.judged_classes)
    found = judge_labels(canaries, predictions, noise, doubted)
    return Snapshot(about, judge, canaries, found.calibration, None, predictions, doubted, noise, held)


def _own_predictions(canaries: Canaries, predictions: LargestPredictions) -> KeptPredictions:
    """What is kept of the hold-out's predictions under its own labels."""
    own = ~canaries.is_flip
    given, p_given = canaries.label[own], canaries.signals[own, CALIBRATED_SIGNALS.index("p_given")]
    others = predictions.others(canaries.holdout_row[own], given)
    return KeptPredictions.of(p_given, given, others, canaries.num_classes)


def is_cross_entropy(losses: Losses, engine: Engine, label_smoothing: float = 0.0) -> bool:
    """Whether a loss has cross-entropy's gradient, tried on random logits; a stranger's function says no name."""
    generator, classes = torch.Generator().manual_seed(0), engine.head.shape.outputs
    logits = torch.randn(8, classes, generator=generator).to(engine.holdout.device).requires_grad_()
    labels = (torch.arange(8) % classes).to(logits.device)
    with torch.enable_grad():
        (found,) = torch.autograd.grad(losses(logits, labels).sum(), logits)
    expected = logit_gradients(logits.detach(), labels, label_smoothing=label_smoothing)
    return torch.allclose(found, expected, rtol=1e-3, atol=1e-5)


def _copy_curvature(watched: Engine, engine: Engine) -> None:
    state, head = watched.curvature.state_dict(), f"{watched.head.name}/"
    tensors = {name: value for name, value in state["tensors"].items() if name.startswith(head)}
    engine.curvature.load_state_dict({**state, "tensors": tensors})
    engine.tracker.use_operator(engine.curvature.operator())
