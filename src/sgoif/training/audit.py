"""One pass over a finished model: the signals of a single, late visit, which is nearly all that many visits give.

The model stays in eval mode and untouched throughout. Curvature comes from a sample of the training examples, anchors
from the whole hold-out, directions from a direct solve; then every training example is scored once. The hold-out is
scored too, fold against fold, and a hold-out with labels as given is cleaned first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from sgoif.gradients import Capture, LayerCapture, quiet_eval
from sgoif.training.canaries import CanaryLedger
from sgoif.training.engine import Engine
from sgoif.training.monitor import logits_of
from sgoif.training.recorder import PendingVisits, Recorder, as_ids

__all__ = ["audit_examples"]

Batch = tuple[Any, Tensor, Any]  # inputs, labels, ids


def audit_examples(
    model: nn.Module,
    engine: Engine,
    batches: Callable[[], Iterable[Batch]],
    recorder: Recorder,
    *,
    forward: Callable[[Any], Tensor],
    losses: Callable[[Tensor, Tensor], Tensor],
    ledger: CanaryLedger | None = None,
    curvature_batches: int = 20,
) -> None:
    """Score every example that ``batches()`` yields, once.

    Args:
        model: the finished model.
        engine: with ``solver="direct"``, no gate and an infinite anchor horizon.
        batches: starts a pass over the training set; called twice.
        recorder: takes the visits.
        forward: inputs to logits.
        losses: logits and labels to per-example losses.
        ledger: takes the hold-out's own scores, for calibration.
        curvature_batches: how many batches the curvature is measured on.
    """
    capture = Capture(engine.layers, keep_outputs=[engine.head.module_name])
    for count, (calls, _, _) in enumerate(_passes(model, capture, batches(), forward, losses)):
        engine.measure(calls)
        if count + 1 >= curvature_batches:
            break
    engine.absorb()
    _renew_anchors(model, engine, forward, losses, ledger)
    if ledger is not None and ledger.is_on and not ledger.trusted:
        ledger.clean(engine)
        _renew_anchors(model, engine, forward, losses, ledger)
    with torch.no_grad():
        for step, (calls, labels, ids) in enumerate(_passes(model, capture, batches(), forward, losses)):
            head = next(call for call in calls if call.layer == engine.head.name)
            signals = engine.score(calls, logits_of(head), labels, None).cpu().numpy()
            recorder.record(PendingVisits(as_ids(ids), labels.cpu().numpy(), signals, step, 0))


def _renew_anchors(
    model: nn.Module,
    engine: Engine,
    forward: Callable[[Any], Tensor],
    losses: Callable[[Tensor, Tensor], Tensor],
    ledger: CanaryLedger | None,
) -> None:
    """Make the anchors of every hold-out example, each once, at its present weight, and score them among themselves."""
    anchors, size, held = engine.anchors, engine.anchors.per_refresh, len(engine.holdout)
    anchors.gathered.zero_()  # what earlier draws left counts for nothing
    draws = []
    for start in range(0, held, size):
        anchors.per_refresh = min(size, held - start)
        draws.append(engine.refresh(model, Capture(engine.layers), forward, losses))
    anchors.per_refresh = size
    engine.advance(0.0, 0.0)
    if ledger is not None and ledger.is_on and engine.settings.probe:
        ledger.forget()
        with torch.no_grad():
            ledger.look(draws, engine, step=0)


def _passes(
    model: nn.Module,
    capture: Capture,
    batches: Iterable[Batch],
    forward: Callable[[Any], Tensor],
    losses: Callable[[Tensor, Tensor], Tensor],
) -> Iterator[tuple[list[LayerCapture], Tensor, Any]]:
    """Run each batch forward and its loss back to the scored layers, in eval mode, touching nothing."""
    capture.scale = 1.0
    for inputs, labels, ids in batches:
        capture.num_examples = len(labels)
        with quiet_eval(model), torch.enable_grad(), capture:
            capture.differentiate(losses(forward(inputs), labels).sum())
        yield list(capture.calls), labels, ids
