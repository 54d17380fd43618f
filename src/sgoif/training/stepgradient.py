"""The mean gradient of one optimiser step over the scored layers, of all micro-batches and processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sgoif.distributed import Peers
from sgoif.gradients import LayerCapture, Space
from sgoif.linalg import norm

__all__ = ["StepGradient"]


class StepGradient:
    """Adds up a step's per-example gradients; only gates that look at the gradient's norm need it."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._count = 0

    def add(self, calls: Sequence[LayerCapture], spaces: Mapping[str, Space]) -> None:
        """Take in one micro-batch."""
        for call in calls:
            ones = torch.ones(call.num_examples, 1, device=call.output_grad.device)
            part = spaces[call.layer].combine(call, ones)
            self._sums[call.layer] = self._sums.get(call.layer, 0.0) + part
        self._count += calls[0].num_examples

    def take_norm(self, peers: Peers) -> Tensor | None:
        """The norm of the mean over all examples of the step, and begin anew; None where none was added."""
        if not self._count:
            return None
        own = list(self._sums.values())
        count, *sums = peers.all_reduce_sum([own[0].new_full((), self._count), *own])
        size: Tensor = norm(dict(zip(self._sums, sums)))[0]
        self._sums, self._count = {}, 0
        return size / count
