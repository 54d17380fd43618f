"""What the head of a finished model sees of some examples, and what they did to some queries: one batch at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sgoif.explain.attribution import Pairs, Vectors
from sgoif.gradients import ExactSpace, dot_directions
from sgoif.gradients.contractions import pooled
from sgoif.influence import HoldOut

__all__ = ["FeatureBatch", "iterate_features", "mean_direction"]


class FeatureBatch(NamedTuple):
    """A batch as the head sees it."""

    positions: Tensor  # [B], in the source
    features: NDArray[np.float32]  # [B, D], without the ones that a bias is multiplied with
    influence: NDArray[np.float32]  # [B], I(i, v) on the mean loss of the queries; positive harms them


def mean_direction(pairs: Pairs, num_observed: int) -> Vectors:
    """``H⁻¹ g`` of the mean gradient of the queries, by K-FAC."""
    solve = pairs.solver("kfac", {}, num_observed)
    mean = {name: block.mean(0, keepdim=True) for name, block in pairs.query_gradients().items()}
    return solve(mean)


def iterate_features(
    pairs: Pairs, source: HoldOut, positions: Tensor, direction: Vectors | None = None
) -> Iterator[FeatureBatch]:
    """Extract features of examples batch by batch, and their influence; without a direction it is 0.

    Args:
        pairs: a model, of which the head is the only layer.
        source: the examples or the queries of ``pairs``.
        positions: which of them.
        direction: from :func:`mean_direction`.
    """
    (head,) = pairs.layers
    space, size = ExactSpace(head), head.shape.inputs - head.shape.has_bias
    for rows in positions.split(pairs.batch_size):
        calls = pairs.calls(source, rows)
        with torch.no_grad():
            features = pooled(space.rows(calls[0]))[0][:, :size].float().cpu().numpy()
            zero = torch.zeros(len(rows), 1)
            found = zero if direction is None else -dot_directions(calls, pairs.spaces, direction)
        yield FeatureBatch(rows, features, found[:, 0].float().cpu().numpy())
