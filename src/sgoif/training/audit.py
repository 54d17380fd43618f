"""One pass over a finished model: the signals of a single, late visit, which is nearly all that many visits give.

The model stays in eval mode and untouched throughout. Curvature comes from a sample of the training examples, anchors
from the whole hold-out, directions from a direct solve; then every training example is scored once. The hold-out is
scored too, fold against fold, and a hold-out with labels as given is cleaned first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sgoif.errors import SgoifError
from sgoif.evidence import as_ids
from sgoif.gradients import Capture, Layer, LayerCapture, capture_calls, dot_directions
from sgoif.influence import HoldOut, packed_signs
from sgoif.influence.holdout import MultilabelHoldOut
from sgoif.judging.probe import Probe, last_word
from sgoif.training.engine import MANY_CLASSES, Engine
from sgoif.training.holdout_scores import HoldoutScores
from sgoif.training.losses import logits_of
from sgoif.training.method import OF_TRACKED, Method
from sgoif.training.multilabel.engine import MultilabelDraw, MultilabelEngine
from sgoif.training.multilabel.ledger import MultilabelLedger
from sgoif.training.multilabel.recorder import MultilabelRecorder
from sgoif.training.recorder import Recorder
from sgoif.training.visits import PendingVisits

__all__ = ["AuditPart", "KeptAnchors", "audit_engine", "audit_examples", "audit_multilabel_examples", "judge_holdout"]

_CURVATURE_BATCHES = 20  # of training examples, that the curvature is measured on

Batch = tuple[Any, Tensor, Any]  # inputs, labels, ids


@dataclass(frozen=True, slots=True)
class AuditPart:
    """A finished model and the examples that it scores."""

    model: nn.Module
    engine: Engine  # see audit_engine
    batches: Callable[[], Iterable[Batch]]  # starts a pass over the examples; called twice
    forward: Callable[[Any], Tensor]  # inputs to logits
    losses: Callable[[Tensor, Tensor], Tensor]  # logits and labels to per-example losses


class KeptAnchors:
    """Influence of every example on every anchor, ``8·K`` bytes an example; a repeated id has the mean of its visits.

    Raises:
        SgoifError: there are too many classes for one anchor each.
    """

    def __init__(self, engine: Engine, num_examples: int) -> None:
        if engine.pooled:
            raise SgoifError(
                f"keep_anchors holds one number per example and class, for {MANY_CLASSES} classes at most; this model "
                f"has {engine.holdout.num_classes}. Ask sgoif.attribute() about the examples that matter."
            )
        self._sums, self._visits = np.zeros((num_examples, engine.anchors.num_anchors)), np.zeros(num_examples)

    def add(self, rows: NDArray[np.int64], values: NDArray[np.floating[Any]]) -> None:
        """One visit per entry: rows of the recorder ``[B]``, values ``[B, K]``."""
        np.add.at(self._sums, rows, values)
        np.add.at(self._visits, rows, 1)

    def column(self, count: int) -> NDArray[np.object_]:
        """One vector per example, as tables hold them."""
        means = self._sums[:count] / self._visits[:count, None]
        return np.fromiter(means.astype(np.float32), dtype=object, count=count)


def audit_engine(
    head: Layer,
    holdout: HoldOut,
    *,
    train_size: int,
    batch_size: int = 256,
    method: Method | None = None,
) -> Engine:
    """An engine for a model that does not move: directions solved, no gate, anchors of the whole hold-out."""
    untracked: dict[str, Any] = dict.fromkeys(OF_TRACKED)
    settings = replace(method or Method(), solver="direct", gate="none", **untracked)
    return Engine(head, [], holdout, settings, train_size=train_size, per_refresh=batch_size, horizon=math.inf)


def audit_examples(
    part: AuditPart, recorder: Recorder, scores: HoldoutScores | None = None, *, keep: KeptAnchors | None = None
) -> Probe | None:
    """Score every example, once; the last word on each is that of a probe, if the hold-out is verified.

    Args:
        part: the model with its examples.
        recorder: takes the visits.
        scores: takes those of the hold-out.
        keep: takes what each example does to each anchor.
    """
    _measure_curvature(part)
    judge_holdout(part, scores)
    engine = part.engine
    probe = None if scores is None or not engine.settings.probe else scores.probe(engine)
    capture = Capture(engine.layers, keep_outputs=[engine.head.module_name])
    with torch.no_grad():
        for step, (calls, (_, labels, ids)) in enumerate(_passes(part, capture)):
            head = next(call for call in calls if call.layer == engine.head.name)
            signals = engine.score(calls, logits_of(head), labels).cpu().numpy()
            words = packed_signs(engine.sketch(engine.head_rows(calls))).cpu().numpy().view(np.int64)
            recorder.record(PendingVisits(as_ids(ids), labels.cpu().numpy(), signals, step, 0, words))
            if probe is not None:
                log_p = probe.logs(engine.pooled_features(calls).cpu())
                said = (column.numpy() for column in last_word(log_p, labels.cpu()))
                recorder.last.keep(recorder.index.add(as_ids(ids)), *said)
            if keep is not None:
                keep.add(recorder.index.add(as_ids(ids)), _on_anchors(engine, calls).cpu().numpy())
    return probe


def _on_anchors(engine: Engine, calls: Sequence[LayerCapture]) -> Tensor:
    """``I(i, v)`` of a batch on every anchor, ``[B, K]``; NaN for an anchor without examples."""
    found = -dot_directions(calls, engine.spaces, engine.directions())
    return found.masked_fill(~engine.anchors.known, float("nan"))


def judge_holdout(part: AuditPart, scores: HoldoutScores | None) -> None:
    """Make anchors and directions of the whole hold-out, whose labels are judged first where they are as given.

    The engine knows its curvature.
    """
    _renew_anchors(part, scores)
    if scores is not None and scores.is_on and scores.cleans_itself:
        scores.clean(part.engine)
        _renew_anchors(part, scores)


def _measure_curvature(part: AuditPart) -> None:
    capture = Capture(part.engine.layers, keep_outputs=[part.engine.head.module_name])
    for calls, _ in islice(_passes(part, capture), _CURVATURE_BATCHES):
        part.engine.measure(calls)
    part.engine.absorb()


def _renew_anchors(part: AuditPart, scores: HoldoutScores | None) -> None:
    """Make the anchors of every hold-out example, each once, at its present weight, and score them among themselves."""
    if scores is not None:
        scores.forget()
    engine, anchors = part.engine, part.engine.anchors
    size, held = anchors.per_refresh, len(engine.holdout)
    anchors.gathered.zero_()  # what earlier draws left counts for nothing
    draws = []
    for start in range(0, held, size):
        anchors.per_refresh = min(size, held - start)
        draws.append(engine.refresh(part.model, Capture(engine.layers), part.forward, part.losses))
    anchors.per_refresh = size
    engine.advance(0.0, 0.0)
    if scores is not None and scores.is_on and engine.settings.probe:
        with torch.no_grad():
            scores.look(draws, engine, step=0)


def _passes(part: AuditPart, capture: Capture) -> Iterator[tuple[list[LayerCapture], Batch]]:
    for batch in part.batches():
        inputs, labels, _ = batch
        yield capture_calls(part.model, part.forward, part.losses, capture, inputs, labels), batch


def audit_multilabel_examples(
    model: nn.Module,
    forward: Callable[[Any], Tensor],
    examples: MultilabelHoldOut,
    engine: MultilabelEngine,
    recorder: MultilabelRecorder,
    ledger: MultilabelLedger,
) -> None:
    """Judge the tags of every example once, in the same order: curvature, the whole hold-out, then the examples.

    The engine has an endless horizon, and as many examples as it takes per refresh are a batch.
    """
    capture, batch_size = Capture([engine.head]), engine.per_refresh
    batches = torch.arange(len(examples)).split(batch_size)
    for positions in batches[:_CURVATURE_BATCHES]:
        seen = engine.look(model, capture, forward, positions, examples)
        engine.measure(seen.features, seen.logits)
    engine.absorb()
    draws = []
    for part in torch.arange(len(engine.holdout)).split(batch_size):
        engine.per_refresh = len(part)  # the last one is shorter: no example comes twice
        draws.append(engine.refresh(model, capture, forward))
    fields = zip(*((draw.positions, draw.features, draw.logits) for draw in draws), strict=True)
    with torch.no_grad():
        ledger.add(MultilabelDraw(*(torch.cat(parts) for parts in fields)), engine, trust=1.0)
        for positions in batches:
            seen = engine.look(model, capture, forward, positions, examples)
            targets, ids = examples.targets[positions], [examples.ids[int(i)] for i in positions]
            recorder.add(ids, engine.score(seen.features, seen.logits, targets), targets, torch.ones(()))
            recorder.flush()
