"""Random gradient rows and the dense matrices they stand for, written out in loops that share nothing with sgoif."""

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from sgoif.records import BlockShape, GradientRows

quick = settings(deadline=None, max_examples=15)
seeds = st.integers(0, 2**31 - 1)

SHAPES = {"conv": BlockShape(2, 2, 3, True), "fc": BlockShape(1, 3, 2, False)}
POSITIONS = {"conv": 4, "fc": 1}


def random_rows(seed: int, examples: int = 6, dtype: torch.dtype = torch.float64) -> list[GradientRows]:
    """Two layers: grouped with several positions and a bias, and one group at one position."""
    g = torch.Generator().manual_seed(seed)
    found = []
    for layer, shape in SHAPES.items():
        t = POSITIONS[layer]
        a = torch.randn(examples, shape.groups, shape.inputs, t, generator=g, dtype=dtype)
        if shape.has_bias:
            a[:, :, -1] = 1.0
        found.append(
            GradientRows(layer, a, torch.randn(examples, shape.groups, shape.outputs, t, generator=g, dtype=dtype))
        )
    return found


def cut(rows: list[GradientRows], start: int, stop: int) -> list[GradientRows]:
    return [GradientRows(r.layer, r.inputs[start:stop], r.output_grads[start:stop]) for r in rows]


def example_gradients(row: GradientRows) -> Tensor:
    """``[B, P]``, one outer product at a time."""
    found = []
    for a, b in zip(row.inputs, row.output_grads, strict=True):
        groups = []
        for ag, bg in zip(a, b, strict=True):
            groups.append(sum(torch.outer(bg[:, t], ag[:, t]) for t in range(a.shape[2])))
        found.append(torch.stack(groups).flatten())
    return torch.stack(found)


def dense_fisher(row: GradientRows) -> Tensor:
    gradients = example_gradients(row)
    return sum(torch.outer(g, g) for g in gradients) / len(gradients)


def kronecker_factors(row: GradientRows) -> tuple[list[Tensor], list[Tensor]]:
    """``G`` and ``A`` of every group."""
    n, groups, _, t = row.inputs.shape
    left, right = [], []
    for g in range(groups):
        a = [row.inputs[i, g, :, s] for i in range(n) for s in range(t)]
        b = [row.output_grads[i, g, :, s] for i in range(n) for s in range(t)]
        right.append(sum(torch.outer(x, x) for x in a) / (n * t))
        left.append(sum(torch.outer(x, x) for x in b) / n)
    return left, right


def damp(factor: Tensor, share: float = 0.1) -> Tensor:
    """Add a share of the mean eigenvalue: the automatic rule, of a factor or of a whole matrix."""
    return factor + share * factor.trace() / factor.shape[0] * torch.eye(factor.shape[0], dtype=factor.dtype)
