"""Batches of packed sequences as Transformers and TRL make them, and what of them is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from sgoif.errors import SgoifError
from sgoif.gradients import quiet_eval
from sgoif.gradients.models import find_logits
from sgoif.gradients.segments import Segments

__all__ = ["is_packed", "refuse_mixing", "refuse_packed_dataset"]

_NEAR = 1e-3  # relative; logits of a sequence that sees another one differ by far more


def is_packed(inputs: Mapping[str, Any]) -> bool:
    """Whether a batch holds sequences one after another: it has positions, and no mask that would tell padding."""
    return inputs.get("position_ids") is not None and inputs.get("attention_mask") is None


def refuse_packed_dataset(trainer: Any) -> None:
    """Raise for TRL's ``packing``, which joins sequences before they are collated: their ids are gone by then."""
    if getattr(trainer.args, "packing", False):
        raise SgoifError(
            "packing=True of this trainer joins sequences in the dataset, where their ids are lost; pass "
            "padding_free=True, which packs each batch, or packing=False."
        )


def refuse_mixing(model: nn.Module, inputs: Mapping[str, Any]) -> None:
    """Raise if packed sequences attend to one another: the last one has other logits than alone.

    Two passes without gradients, once. With a cache, Transformers makes no mask between packed sequences.

    Raises:
        SgoifError: they do, so no gradient belongs to one sequence alone.
    """
    segments = Segments.from_positions(inputs["position_ids"])
    if len(segments) == inputs["position_ids"].shape[0]:
        return
    last = inputs["input_ids"].flatten()[segments.places[-1][segments.is_filled[-1]]]
    with quiet_eval(model), torch.no_grad():
        packed, alone = (
            find_logits(model(input_ids=ids, position_ids=positions, use_cache=False))[-1, -len(last) :]
            for ids, positions in (
                (inputs["input_ids"], inputs["position_ids"]),
                (last[None], torch.arange(len(last), device=last.device)[None]),
            )
        )
    if not bool((packed - alone).abs().max() <= _NEAR * alone.abs().max()):
        raise SgoifError(
            "packed sequences attend to one another in this model, so that no gradient belongs to one sequence. Use an "
            "attention that keeps them apart by position_ids (sdpa or flash attention), or pad them instead."
        )
