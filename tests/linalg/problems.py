"""Small float64 problems with a known dense truth, shared by the tests of this folder."""

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from sgoif.linalg import (
    BlockDiagonal,
    Damped,
    Dense,
    Diagonal,
    Kronecker,
    LinearOperator,
    LowRankPlusDiagonal,
    RotatedDiagonal,
)

quick = settings(deadline=None, max_examples=25)
few = settings(deadline=None, max_examples=6)  # where a test runs once per structure
seeds = st.integers(0, 2**31 - 1)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(g: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=g, dtype=torch.float64)


def spd(g: torch.Generator, n: int, condition: float = 10.0, batch: tuple[int, ...] = ()) -> Tensor:
    """Random eigenvectors, eigenvalues spread geometrically over [1/condition, 1]."""
    rotation, _ = torch.linalg.qr(normal(g, *batch, n, n))
    values = torch.logspace(0, -1, n, base=condition, dtype=torch.float64) if n > 1 else torch.ones(1).double()
    return (rotation * values) @ rotation.mT


KINDS = ("dense", "diagonal", "kronecker", "rotated", "lowrank", "damped", "damped-kronecker", "damped-twice", "blocks")


def structured(
    kind: str, seed: int, groups: int = 2, outputs: int = 2, inputs: int = 3
) -> tuple[LinearOperator, Tensor]:
    """An operator of each structure, positive definite, and the same matrix written out by hand."""
    g = generator(seed)
    size = groups * outputs * inputs
    if kind == "dense":
        matrix = spd(g, size)
        return Dense(matrix), matrix
    if kind == "diagonal":
        values = normal(g, size).abs() + 0.1
        return Diagonal(values), torch.diag(values)
    if kind == "kronecker":
        left, right = spd(g, outputs, batch=(groups,)), spd(g, inputs, batch=(groups,))
        return Kronecker(left, right), torch.block_diag(*map(torch.kron, left, right))
    if kind == "rotated":
        left, _ = torch.linalg.qr(normal(g, groups, outputs, outputs))
        right, _ = torch.linalg.qr(normal(g, groups, inputs, inputs))
        values = normal(g, groups, outputs, inputs).abs() + 0.1
        basis = torch.block_diag(*map(torch.kron, left, right))
        return RotatedDiagonal(left, right, values), basis @ torch.diag(values.flatten()) @ basis.mT
    if kind == "lowrank":
        diag, low_rank = normal(g, size).abs() + 0.1, normal(g, size, 3)
        return LowRankPlusDiagonal(diag, low_rank), torch.diag(diag) + low_rank @ low_rank.mT
    eye = torch.eye(size, dtype=torch.float64)
    if kind == "damped":
        inner, dense = structured("lowrank", seed, groups, outputs, inputs)
        return Damped(inner, 0.3), dense + 0.3 * eye
    if kind == "damped-kronecker":
        inner, dense = structured("kronecker", seed, groups, outputs, inputs)
        return Damped(inner, torch.tensor(0.2, dtype=torch.float64)), dense + 0.2 * eye
    if kind == "damped-twice":
        inner, dense = structured("rotated", seed, groups, outputs, inputs)
        return Damped(Damped(inner, 0.1), torch.tensor(0.4, dtype=torch.float64)), dense + 0.5 * eye
    parts = [
        structured(k, seed + i, 1, outputs, inputs) for i, k in enumerate(("dense", "damped-kronecker", "lowrank"))
    ]
    return BlockDiagonal(tuple(op for op, _ in parts)), torch.block_diag(*(dense for _, dense in parts))
