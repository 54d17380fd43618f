"""One pass over a finished language model: every sequence is scored once, by gradients and curvature of the end."""

from __future__ import annotations

import torch
from torch import nn

from sgoif.gradients import Capture, quiet_eval
from sgoif.influence.groups import Forward, differentiate
from sgoif.influence.sequence_sets import SequenceSet
from sgoif.rng import preserve_rng
from sgoif.training.sequences.engine import SequenceEngine
from sgoif.training.sequences.recorder import SequenceRecorder

__all__ = ["audit_sequence_examples"]

# Training sequences that the curvature is measured on. Their completions are drawn from the model: with those as given,
# wrong ones are in the curvature, and harm found 50 AP in place of 57 of near intents (CLINC150, 20%).
_CURVATURE_SEQUENCES = 2000


def audit_sequence_examples(
    model: nn.Module,
    forward: Forward,
    examples: SequenceSet,
    engine: SequenceEngine,
    recorder: SequenceRecorder,
    *,
    batch_size: int,
    seed: int = 0,
) -> None:
    """Measure the curvature on some sequences, look at every group whole, then score every sequence once.

    The model is used in eval mode and left as found.
    """
    capture = Capture(engine.layers)
    generator = torch.Generator().manual_seed(seed)
    sample = torch.randperm(len(examples), generator=generator)[:_CURVATURE_SEQUENCES]
    with preserve_rng(own=examples.generators), quiet_eval(model):
        for chosen in sample.split(batch_size):
            _, batch = examples.read(chosen.tolist())
            seen = differentiate(capture, forward, batch, engine.is_causal, generator)
            engine.absorb(engine.measure(seen.calls, most=batch_size))
        engine.refresh(model, capture, forward, len(engine.groups) * max(engine.groups.sizes))
        for step, chosen in enumerate(torch.arange(len(examples)).split(batch_size)):
            ids, batch = examples.read(chosen.tolist())
            seen = differentiate(capture, forward, batch, engine.is_causal)
            with torch.no_grad():
                recorder.add(step, ids, seen.losses, seen.num_tokens, engine.score(seen.calls))
            recorder.flush()
