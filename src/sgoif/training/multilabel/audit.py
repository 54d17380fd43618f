"""One pass over a finished model: the tags of every training example, judged once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sgoif.gradients import Capture
from sgoif.influence.holdout import MultilabelHoldOut
from sgoif.training.multilabel.engine import MultilabelDraw, MultilabelEngine
from sgoif.training.multilabel.ledger import MultilabelLedger
from sgoif.training.multilabel.recorder import MultilabelRecorder

__all__ = ["audit_examples"]

_CURVATURE_BATCHES = 20  # of training examples, as in an audit of classes


def audit_examples(
    model: nn.Module,
    engine: MultilabelEngine,
    examples: MultilabelHoldOut,
    forward: Callable[[Any], Tensor],
    recorder: MultilabelRecorder,
    ledger: MultilabelLedger,
    batch_size: int = 256,
) -> None:
    """Measure curvature on some training examples, anchors on the whole hold-out, and score every training example.

    Args:
        model: left as found.
        engine: with an endless horizon.
        examples: the training examples, in the form of a hold-out.
        forward: inputs to logits.
        recorder: takes the visits, which all count fully.
        ledger: takes the hold-out's own pairs, fold against fold.
        batch_size: of every pass.
    """
    capture = Capture([engine.head])
    for positions in _batches(len(examples), batch_size)[:_CURVATURE_BATCHES]:
        seen = engine.look(model, capture, forward, positions, examples)
        engine.measure(seen.features, seen.logits)
    engine.absorb()
    draws = []
    for part in _batches(len(engine.holdout), batch_size):
        engine.per_refresh = len(part)  # the last one is shorter: no example comes twice
        draws.append(engine.refresh(model, capture, forward))
    fields = zip(*((draw.positions, draw.features, draw.logits) for draw in draws), strict=True)
    with torch.no_grad():
        ledger.add(MultilabelDraw(*(torch.cat(parts) for parts in fields)), engine, trust=1.0)
        for positions in _batches(len(examples), batch_size):
            seen = engine.look(model, capture, forward, positions, examples)
            targets, ids = examples.targets[positions], [examples.ids[int(i)] for i in positions]
            recorder.add(ids, engine.score(seen.features, seen.logits, targets), targets, torch.ones(()))
            recorder.flush()


def _batches(count: int, size: int) -> Sequence[Tensor]:
    return [torch.arange(start, min(start + size, count)) for start in range(0, count, size)]
