"""One pass over a finished language model: every sequence is scored once, by gradients and curvature of the end."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sgoif.errors import SgoifError
from sgoif.evidence import as_ids
from sgoif.gradients import Capture, quiet_eval
from sgoif.influence.groups import Forward, differentiate
from sgoif.influence.near_prompts import NearPrompts
from sgoif.influence.sequence_keys import sequence_keys
from sgoif.influence.sequence_sets import SequenceSet
from sgoif.rng import preserve_rng
from sgoif.training.sequences.engine import SequenceEngine
from sgoif.training.sequences.recorder import SequenceRecorder
from sgoif.training.sequences.tuned import Tuning, sequence_means, tune
from sgoif.types import Columns

__all__ = ["Audited", "audit_sequence_examples"]

log = logging.getLogger(__name__)

# Training sequences that the curvature is measured on. Their completions are drawn from the model: with those as given,
# wrong ones are in the curvature, and harm found 50 AP in place of 57 of near intents (CLINC150, 20%).
_CURVATURE_SEQUENCES = 2000


@dataclass(frozen=True, slots=True)
class Audited:
    """What an audit knows beside what its recorder keeps."""

    near: NearPrompts  # the evaluation sequences by prompt
    tuning: Tuning | str  # how they were learnt, or why not
    columns: Columns  # by the recorder's rows


def audit_sequence_examples(
    model: nn.Module,
    forward: Forward,
    examples: SequenceSet,
    engine: SequenceEngine,
    recorder: SequenceRecorder,
    *,
    batch_size: int,
    seed: int = 0,
) -> Audited:
    """Measure the curvature on some sequences, look at every group whole, then score every sequence once.

    The model is used in eval mode and left as found.

    Raises:
        SgoifError: it has weights that are not finite.

    Returns:
        Columns are keys of prompt and sequence, the group that has the same sequence, if any; where prompts can be read
        the conflict with the evaluation sequences, and how far these cover its prompt; and the loss once the model has
        learnt them, where that taught it something. NaN where a sequence has no token.
    """
    broken = [name for name, value in model.named_parameters() if not bool(value.isfinite().all())]
    if broken:
        raise SgoifError(
            f"the model has weights that are not finite, first {broken[0]!r}: its training diverged, and there is "
            "nothing to audit. Audit an earlier checkpoint."
        )
    near = NearPrompts(engine.layers, engine.spaces, is_causal=engine.is_causal, dtype=engine.dtype)
    scored: list[_Scored] = []
    capture = Capture(engine.layers)
    generator = torch.Generator().manual_seed(seed)
    sample = torch.randperm(len(examples), generator=generator)[:_CURVATURE_SEQUENCES]
    with preserve_rng(own=[*examples.generators, *engine.groups.generators]), quiet_eval(model):
        for chosen in sample.split(batch_size):
            _, batch = examples.read(chosen.tolist())
            seen = differentiate(capture, forward, batch, engine.is_causal, generator)
            engine.absorb(engine.measure(seen.calls, most=batch_size))
        engine.refresh(model, capture, forward, len(engine.groups) * max(engine.groups.sizes))
        is_near = near.fit(capture, forward, engine.groups.read_all, engine.solve)
        with near.reading() if is_near else nullcontext():
            for step, chosen in enumerate(torch.arange(len(examples)).split(batch_size)):
                ids, batch = examples.read(chosen.tolist())
                seen = differentiate(capture, forward, batch, engine.is_causal)
                found = _Scored(ids, sequence_keys(batch, is_causal=engine.is_causal))
                prompts = near.take(batch) if is_near else None
                with torch.no_grad():
                    recorder.add(step, ids, seen.losses, seen.num_tokens, engine.score(seen.calls))
                    if prompts is not None:
                        empty = seen.num_tokens == 0
                        raw = (values.masked_fill(empty, torch.nan) for values in near.score(seen, prompts))
                        found.conflict, found.coverage = (values.cpu().double().numpy() for values in raw)
                scored.append(found)
                recorder.flush()
        copied = _find_groups(engine)
        tuning = _add_tuned_losses(scored, model, forward, examples, engine, batch_size=batch_size, seed=seed)
    names = ["conflict", "coverage"] * is_near + ["loss_tuned"] * isinstance(tuning, Tuning)
    return Audited(near, tuning, _gather(scored, recorder, names, copied))


@dataclass(slots=True)
class _Scored:
    """What is known of the sequences of a batch."""

    ids: list[Any]
    keys: NDArray[np.int64]  # of prompt and sequence, [B, 2]
    conflict: NDArray[np.float64] | None = None
    coverage: NDArray[np.float64] | None = None
    loss_tuned: NDArray[np.float64] | None = None


def _add_tuned_losses(
    scored: Sequence[_Scored],
    model: nn.Module,
    forward: Forward,
    examples: SequenceSet,
    engine: SequenceEngine,
    *,
    batch_size: int,
    seed: int,
) -> Tuning | str:
    """Find the losses once the model has learnt the evaluation sequences.

    What goes wrong here, such as too little memory, does not cost the scores that are there.
    """
    learnt = tune(
        model, forward, engine.groups, examples, engine.layers,
        is_causal=engine.is_causal, batch_size=batch_size, seed=seed,
    )  # fmt: skip
    try:
        with learnt as tuning:
            if isinstance(tuning, Tuning):
                for found, chosen in zip(scored, torch.arange(len(examples)).split(batch_size)):
                    _, batch = examples.read(chosen.tolist())
                    means = sequence_means(forward, batch, is_causal=engine.is_causal)
                    found.loss_tuned = means.cpu().double().numpy()
            return tuning
    except Exception as error:
        log.debug("tuning stopped", exc_info=True)
        return f"tuning on them stopped with {type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _gather(
    scored: Sequence[_Scored], recorder: SequenceRecorder, names: Sequence[str], copied: Mapping[int, str]
) -> Columns:
    """Columns by the recorder's rows; of sequences with the same id the last one counts."""
    count = len(recorder.index)
    keys = np.zeros((count, 2), np.int64)
    values: Columns = {name: np.full(count, np.nan) for name in names}
    for found in scored:
        rows = recorder.index.rows(as_ids(found.ids))
        keys[rows] = found.keys
        for name in names:
            if (value := getattr(found, name)) is not None:
                values[name][rows] = value
    groups = np.array([copied.get(key) for key in keys[:, 1].tolist()], object)
    known: Columns = {"prompt_key": keys[:, 0], "sequence_key": keys[:, 1], "copied_group": groups}
    return {**(known if keys.any() else {}), **values}


def _find_groups(engine: SequenceEngine) -> dict[int, str]:
    """The group of every evaluation sequence, by its key."""
    names = np.repeat(np.array(list(engine.groups.shares), object), engine.groups.sizes)
    batches = (sequence_keys(batch, is_causal=engine.is_causal)[:, 1] for batch in engine.groups.read_all())
    return {key: name for key, name in zip(np.concatenate(list(batches)).tolist(), names.tolist()) if key}
