"""A snapshot of a model as it is now: the whole hold-out is judged anew, fold against fold, as an audit does.

A monitor's own directions follow the model with a lag; what is scored later meets the model of this moment alone, so
that directions and predictions of the hold-out must be of this moment too.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sgoif.errors import SgoifError
from sgoif.evidence import hash_ids
from sgoif.gradients.fingerprint import hash_weights
from sgoif.judging.judge import fit_judge
from sgoif.judging.observations import unseen_observations
from sgoif.snapshot.snapshot import About, Snapshot
from sgoif.store.info import environment, now
from sgoif.tasks.classification import logit_gradients
from sgoif.training.audit import AuditPart, audit_engine, judge_holdout
from sgoif.training.engine import Engine
from sgoif.training.holdout_scores import HoldoutScores
from sgoif.training.losses import HoldoutPass, Losses
from sgoif.training.monitor import Monitor
from sgoif.training.recorder import Recorder

__all__ = ["is_cross_entropy", "snapshot_audit", "snapshot_of", "take_snapshot"]


def take_snapshot(monitor: Monitor, seen: HoldoutPass) -> Snapshot:
    """Judge a monitor's hold-out by the model as it is, in eval mode, and keep what judges.

    Costs a forward pass over the hold-out, two where its labels are as given. Model and monitor are left as found:
    later scores are those that would have been without.

    Raises:
        SgoifError: No step was scored yet.
    """
    watched, scores = monitor.engine, None
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
    if monitor.holdout_scores is not None and settings.probe:
        scores = HoldoutScores(engine, trusted=monitor.holdout_scores.trusted)
    part = AuditPart(monitor.model, engine, lambda: (), seen.forward, seen.losses)
    judge_holdout(part, scores)
    return snapshot_of(
        monitor.model,
        engine,
        scores,
        class_names=monitor.facts.get("class_names") or (),
        label_smoothing=monitor.loss.label_smoothing,
        is_cross_entropy=is_cross_entropy(seen.losses, watched, monitor.loss.label_smoothing),
        autocast=seen.autocast,
        step=monitor.step_count,
    )


def snapshot_audit(part: AuditPart, scores: HoldoutScores, recorder: Recorder, class_names: Sequence[str]) -> Snapshot:
    """Keep what an audit judged by, adapted to the examples that it scored."""
    is_usual = is_cross_entropy(part.losses, part.engine)
    found = snapshot_of(part.model, part.engine, scores, class_names=class_names, is_cross_entropy=is_usual)
    count = len(recorder.index)
    signals: dict[str, NDArray[Any]] = {name: recorder.means.mean(name)[:count] for name in recorder.means.signals}
    others = recorder.likely.top(count)  # of the one visit that an audit makes
    signals["runner_up"] = others.labels[:, 0]
    signals |= {} if found.probe is None else recorder.last.columns(count)
    signals["worst_anchor"] = recorder.evidence.suggested_label(top=1).labels[:count, 0]
    return found.adapted(signals, recorder.given[:count])


def snapshot_of(
    model: nn.Module,
    engine: Engine,
    scores: HoldoutScores | None,
    *,
    class_names: Sequence[str] = (),
    label_smoothing: float = 0.0,
    is_cross_entropy: bool = True,
    autocast: torch.dtype | None = None,
    step: int | None = None,
) -> Snapshot:
    """Keep what an audit's engine judges by, before it meets any training example."""
    competence = None if scores is None else scores.competence(engine)
    why = "the hold-out was not judged" if competence is None else competence.why_not
    heldout, probe = None, None
    if scores is not None and why is None:
        probe = scores.probe(engine) if engine.settings.probe else None
        heldout = scores.heldout(engine, probe)
    is_trusted = scores is not None and scores.trusted
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
    if heldout is None:
        return Snapshot(about, judge, held_out=held)
    asked = heldout if heldout.probe is None else replace(heldout, predictions=heldout.probe)
    try:
        labels = fit_judge(unseen_observations(asked))  # of the hold-out's own labels, until training examples are seen
    except SgoifError as error:
        return Snapshot(replace(about, no_p_reason=str(error)), judge, held_out=held)
    return Snapshot(about, judge, heldout, labels, held, probe)


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
