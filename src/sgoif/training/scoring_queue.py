"""Batches that wait to be scored together: what is kept of each, and how those of several steps become one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sgoif.influence import PooledPoint
from sgoif.records import SIGNALS, GradientRows, VisitFlag

__all__ = ["QueuedBatch", "ScoredBatch", "Waypoint", "join_masks", "join_rows", "pack_signals", "split_queue"]


@dataclass(frozen=True, slots=True)
class Waypoint:
    """The head's directions at one step, and how far they are trusted."""

    directions: Tensor | PooledPoint  # [K, 1, C, I], or what they are made of
    confidence: Tensor | None  # [K]; None before there is a direction


@dataclass(frozen=True, slots=True)
class QueuedBatch:
    """All that the scores of one micro-batch depend on, beside the state of the engine."""

    ticket: int
    place: int  # how many steps the directions have to advance before they are those of its step
    rows: GradientRows  # of the head
    outputs: Tensor  # logits, [B, C], in float32 or wider
    labels: Tensor  # [B]
    mixed: Tensor | None
    is_class: Tensor | None
    beside: Tensor | None  # inner products at the layers beside the head, [B, 3·K]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def nbytes(self) -> int:
        return self.rows.inputs.nbytes + self.rows.output_grads.nbytes + self.outputs.nbytes

    def fits(self, other: QueuedBatch) -> bool:
        """Whether both can be scored as one batch."""
        return all(
            (mine.shape[1:], mine.dtype) == (theirs.shape[1:], theirs.dtype)
            for mine, theirs in (
                (self.rows.inputs, other.rows.inputs),
                (self.rows.output_grads, other.rows.output_grads),
                (self.outputs, other.outputs),
            )
        )


@dataclass(frozen=True, slots=True)
class ScoredBatch:
    """What was found of one micro-batch."""

    signals: Tensor  # packed, [B, len(SIGNALS)]
    signs: Tensor | Exception  # what the head saw of each example, [B, 256], or why that is not known


def split_queue(batches: Sequence[QueuedBatch], most_logits: int) -> list[list[QueuedBatch]]:
    """Batches in groups of at most so many logits, or of one batch that has more."""
    groups: list[list[QueuedBatch]] = []
    room = 0
    for batch in batches:
        if not groups or batch.outputs.numel() > room:
            groups.append([])
            room = most_logits
        groups[-1].append(batch)
        room -= batch.outputs.numel()
    return groups


def join_rows(parts: Sequence[GradientRows]) -> GradientRows:
    """The rows of several batches of one layer, one after the other."""
    if len(parts) == 1:
        return parts[0]
    inputs, grads = (torch.cat([getattr(part, name) for part in parts]) for name in ("inputs", "output_grads"))
    return GradientRows(parts[0].layer, inputs, grads)


def join_masks(batches: Sequence[QueuedBatch], name: str, otherwise: bool) -> Tensor | None:
    """A mask over all rows, with a value for the batches that have none; None where no batch has one."""
    masks = [getattr(batch, name) for batch in batches]
    if all(mask is None for mask in masks):
        return None
    return torch.cat(
        [
            torch.full_like(batch.labels, otherwise, dtype=torch.bool) if mask is None else mask
            for mask, batch in zip(masks, batches)
        ]
    )


def pack_signals(
    columns: Mapping[str, Tensor], dtype: torch.dtype, mixed: Tensor | None = None, is_class: Tensor | None = None
) -> Tensor:
    """Columns ``[B]`` as one tensor ``[B, len(SIGNALS)]``, with the flags of each row.

    Args:
        columns: all signals but the flags.
        dtype: of the result.
        mixed: rows whose targets are mixed, ``[B]``, where there may be any.
        is_class: rows whose given label is a class, ``[B]``, where some may have none.
    """
    packed = torch.stack([columns[name].to(dtype) for name in SIGNALS[:-1]], 1)
    is_finite = packed.abs().amax(1) < float("inf")  # NaN passes through the maximum and fails the comparison
    flags = (columns["confidence"] <= 0).to(dtype)  # NOT_JUDGED is 1
    flags = flags.add(~is_finite, alpha=int(VisitFlag.NOT_FINITE))
    if mixed is not None:
        flags = flags.add(mixed, alpha=int(VisitFlag.MIXED))
    if is_class is not None:
        flags = flags.add(~is_class, alpha=int(VisitFlag.IGNORED))
    return torch.cat([packed, flags[:, None]], 1)
