"""Several sequences packed into one row: where each begins and ends, and captures with one sequence per example.

A packed batch ``[B, T]`` has more sequences than rows. Its layers act at every position alone, so that the gradient of
one sequence is the sum over its own positions, and it is enough to move positions: :meth:`Segments.split` turns a
capture of rows into one of sequences, padded with zero gradients, which all contraction rules take as any other batch.

That sum is the gradient of the sequence's own loss where attention does not cross from one sequence into another, as
Transformers' models have it when they are given ``position_ids`` that start again at 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sgoif.errors import CaptureError
from sgoif.gradients.rules import LayerCapture

__all__ = ["Segments"]


@dataclass(frozen=True, slots=True)
class Segments:
    """Which positions of a packed batch belong to which sequence.

    >>> packed = Segments.from_positions(torch.tensor([[0, 1, 2, 0, 1]]))
    >>> len(packed), packed.places.tolist()
    (2, [[0, 1, 2], [3, 4, 0]])
    >>> packed.sum(torch.tensor([[1.0, 1.0, 1.0, 5.0, 5.0]])).tolist()
    [3.0, 10.0]
    """

    shape: tuple[int, int]  # rows and positions of the batch
    places: Tensor  # of each sequence's positions in the flattened batch, [S, L]; 0 where it has ended
    is_filled: Tensor  # whether a place is one, [S, L]
    owner: Tensor  # sequence of every position, [B, T]

    def __len__(self) -> int:
        return self.places.shape[0]

    @classmethod
    def from_positions(cls, position_ids: Tensor) -> Segments:
        """Read ``position_ids [B, T]``: a sequence begins at every 0, and at every row. Waits for the device once."""
        if position_ids.dim() != 2:
            raise CaptureError(f"position_ids must be [rows, positions], got shape {tuple(position_ids.shape)}.")
        begins = position_ids == 0
        begins[:, 0] = True
        return cls._from_begins(begins)

    @classmethod
    def from_lengths(cls, cu_seqlens: Tensor) -> Segments:
        """Read the cumulative lengths ``[S + 1]`` of sequences that are packed into one row."""
        ends = cu_seqlens.long()
        if ends.dim() != 1 or len(ends) < 2 or int(ends[0]) != 0 or not bool((ends.diff() > 0).all()):
            raise CaptureError("cu_seqlens must be cumulative lengths [0, n_1, n_1 + n_2, ...]; got others.")
        begins = torch.zeros(1, int(ends[-1]), dtype=torch.bool, device=ends.device)
        begins[0, ends[:-1]] = True
        return cls._from_begins(begins)

    @classmethod
    def _from_begins(cls, begins: Tensor) -> Segments:
        owner = begins.flatten().cumsum(0) - 1
        lengths = torch.bincount(owner)
        starts = lengths.cumsum(0) - lengths
        steps = torch.arange(int(lengths.max()), device=begins.device)
        is_filled = steps < lengths[:, None]
        places = torch.where(is_filled, starts[:, None] + steps, 0)
        return cls((begins.shape[0], begins.shape[1]), places, is_filled, owner.view_as(begins))

    def sum(self, values: Tensor) -> Tensor:
        """Add up values ``[B, T]`` within each sequence, ``[S]``."""
        return values.new_zeros(len(self)).index_add_(0, self.owner.flatten(), values.flatten())

    def split(self, call: LayerCapture) -> LayerCapture:
        """The same call with one sequence per example, padded to the longest by positions without a gradient.

        Raises:
            CaptureError: the layer was not called at every position of the batch.
        """
        grad, value = call.grad, call.input
        if tuple(grad.shape[:2]) != self.shape or tuple(value.shape[:2]) != self.shape:
            raise CaptureError(
                f"{call.layer}: in a packed batch of {self.shape[0]} rows and {self.shape[1]} positions a scored layer "
                f"is called at each of them, but this one got {tuple(value.shape)} and gave {tuple(grad.shape)}. Leave "
                "it out of the scored layers."
            )
        moved = grad.flatten(0, 1)[self.places]
        shown = self.is_filled.view(*self.is_filled.shape, *(1,) * (moved.dim() - 2))
        return replace(
            call,
            inputs=(value.flatten(0, 1)[self.places],),
            output_grad=moved * shown.to(moved.dtype),
            batch_axis=0,
            extras={},
        )

    def split_all(self, calls: Iterable[LayerCapture]) -> list[LayerCapture]:
        """:meth:`split` of every call."""
        return [self.split(call) for call in calls]
