"""A gradient at very many outputs by its largest entries, one value standing for each of the others.

``p - e_y`` is large at the given class and at those that the example is taken for; over the thousands of others it is
small and nearly even. A product with all rows of a ``[C, I]`` matrix then takes the few rows that matter, and their sum
for the rest: ``B·N·I`` multiplications for ``B·C·I``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sgoif.influence.scoring import near_classes

__all__ = ["ALL_UP_TO", "NEAR", "NearOutputs"]

ALL_UP_TO = 2048  # outputs: gathering rows costs more than a product with all of so many
NEAR = 16  # entries kept of each gradient: harm then correlates with that of all 4,000 outputs by 0.998


class NearOutputs(NamedTuple):
    """The largest entries of gradients ``b [B, C]``."""

    columns: Tensor  # of which outputs, [B, N]
    values: Tensor  # [B, N]
    rest: Tensor  # at each other output, [B]

    @classmethod
    def of(cls, gradients: Tensor, count: int = NEAR) -> NearOutputs:
        """Of gradients ``[B, C]``; exact where ``C`` is no larger than ``count``."""
        outputs = gradients.shape[1]
        columns = gradients.abs().topk(min(count, outputs), 1).indices
        values = gradients.gather(1, columns)
        rest = (gradients.sum(1) - values.sum(1)) / max(outputs - count, 1)
        return cls(columns, values, rest)

    def most_probable(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """What :func:`sgoif.influence.scoring.near_classes` finds, ``[B, 6]``, without a look at the other outputs."""
        largest = near_classes(outputs.gather(1, self.columns), labels)[:, :-1]
        return torch.cat([self.columns.gather(1, largest), labels[:, None]], 1)

    def pick(self, rows: Tensor) -> Tensor:
        """The rows ``[C, ...]`` that belong to the entries, ``[B, N, ...]``."""
        batch, count = self.columns.shape
        return rows.index_select(0, self.columns.flatten()).view(batch, count, *rows.shape[1:])

    def weigh(self, near: Tensor, whole: Tensor) -> Tensor:
        """``Σ_c b_c x_c`` of numbers known at the entries ``[B, N]``, and by their sum over all outputs ``[B]``."""
        return ((self.values - self.rest[:, None]) * near).sum(1) + self.rest * whole
