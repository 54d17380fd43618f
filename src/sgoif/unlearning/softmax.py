"""A linear head as softmax regression over features that stay: losses, gradients and curvature of some examples.

For this problem the Gauss-Newton matrix is the Hessian, and the loss is convex in the head's weights. What is as large
as examples times classes is made for a slice of the examples at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sgoif.linalg.operator import StoredOperator

__all__ = ["HeadRows", "SoftmaxHessian"]

SLICE_BYTES = 256 * 2**20  # of numbers per example, class and column


@dataclass(frozen=True, slots=True, eq=False)
class HeadRows:
    """Examples as a head sees them; ``theta`` is its weights ``[C, D]``, a bias their last column.

    >>> rows = HeadRows(torch.tensor([[1.0, 1.0], [2.0, 1.0]]), torch.tensor([0, 1]))
    >>> rows.losses(torch.zeros(2, 2))
    tensor([0.6931, 0.6931])
    >>> rows.gradient(torch.zeros(2, 2))
    tensor([[ 0.2500,  0.0000],
            [-0.2500,  0.0000]])
    """

    features: Tensor  # [m, D], a constant 1 last where the head has a bias
    labels: Tensor  # [m]

    def __len__(self) -> int:
        return len(self.labels)

    def slices(self, width: int) -> Iterator[HeadRows]:
        """The rows in turn, so many that ``width`` numbers of each fit into :data:`SLICE_BYTES`."""
        size = max(1, SLICE_BYTES // (width * self.features.element_size()))
        for start in range(0, len(self), size):
            yield HeadRows(self.features[start : start + size], self.labels[start : start + size])

    def join(self, other: HeadRows) -> HeadRows:
        """These, then the others."""
        return HeadRows(torch.cat([self.features, other.features]), torch.cat([self.labels, other.labels]))

    def losses(self, theta: Tensor) -> Tensor:
        """Cross-entropy of every example, ``[m]``."""
        parts = self.slices(len(theta))
        return torch.cat([F.cross_entropy(part.features @ theta.mT, part.labels, reduction="none") for part in parts])

    def gradient(self, theta: Tensor) -> Tensor:
        """Of the mean loss, ``[C, D]``."""
        total = torch.zeros_like(theta)
        for part in self.slices(len(theta)):
            total += part._output_gradients(theta).mT @ part.features
        return total / len(self)

    def dots(self, theta: Tensor, direction: Tensor) -> Tensor:
        """``⟨direction, g_i⟩`` of every example's gradient with one direction ``[C, D]``: ``[m]``."""
        parts = self.slices(len(theta))
        return torch.cat([(part._output_gradients(theta) * (part.features @ direction.mT)).sum(1) for part in parts])

    def _output_gradients(self, theta: Tensor) -> Tensor:
        """``p - onehot``, ``[m, C]``."""
        found = torch.softmax(self.features @ theta.mT, 1)
        found[torch.arange(len(self), device=found.device), self.labels] -= 1
        return found


@dataclass(frozen=True, slots=True, eq=False)
class SoftmaxHessian(StoredOperator):
    """``Σ_i w_ik (diag(p_i) - p_i p_iᵀ) ⊗ x_i x_iᵀ`` by its products with column k: ``O(m C D)`` each.

    With K columns of weights it stands for K Hessians, the k-th of which multiplies column k; a solver that treats
    columns apart then solves K different systems in one go.
    """

    theta: Tensor  # [C, D]
    rows: HeadRows
    weights: Tensor  # w, [m, K], or [m, 1] for one Hessian

    @property
    def shape(self) -> tuple[int, int]:
        return (self.theta.numel(), self.theta.numel())

    def matmul(self, rhs: Tensor) -> Tensor:
        (classes, size), columns = self.theta.shape, rhs.shape[1]
        side_by_side = self.check_columns(rhs).reshape(classes, size, columns).transpose(0, 1).reshape(size, -1)
        found, start = torch.zeros_like(side_by_side), 0  # [D, C·K]
        for part in self.rows.slices(classes * columns):
            weights = self.weights[start : start + len(part)]
            p = torch.softmax(part.features @ self.theta.mT, 1)[:, :, None]
            moved = (part.features @ side_by_side).reshape(len(part), classes, columns)
            curved = p * (moved - (p * moved).sum(1, keepdim=True)) * weights[:, None]
            found += part.features.mT @ curved.reshape(len(part), -1)
            start += len(part)
        return found.reshape(size, classes, columns).transpose(0, 1).reshape(-1, columns)
