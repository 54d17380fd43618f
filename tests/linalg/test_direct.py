"""The direct solver equals a dense solve of the same matrix, whatever the structure."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from sgoif.errors import LinalgError
from sgoif.linalg import (
    BlockDiagonal,
    Damped,
    Dense,
    Diagonal,
    Direct,
    Kronecker,
    LinearOperator,
    LowRankPlusDiagonal,
    SolveStatus,
)
from tests.linalg.problems import KINDS, few, generator, normal, seeds, structured

dims = st.integers(1, 3)


@pytest.mark.parametrize("extra", [0.0, 0.7])
@pytest.mark.parametrize("kind", KINDS)
@few
@given(seed=seeds, groups=dims, outputs=dims, inputs=dims)
def test_direct_equals_dense_solve(kind, seed, groups, outputs, inputs, extra):
    operator, dense = structured(kind, seed, groups, outputs, inputs)
    if extra:  # damping around any structure, blocks included
        operator, dense = Damped(operator, extra), dense + extra * torch.eye(dense.shape[0]).double()
    rhs = normal(generator(seed + 1), dense.shape[0], 3)
    solution = Direct().solve(Direct().prepare(operator), rhs)
    assert_close(solution.value, torch.linalg.solve(dense, rhs))
    assert solution.worst_status is SolveStatus.CONVERGED
    assert (solution.stats.relative_residual < 1e-10).all()


def test_unknown_structure_falls_back_on_the_dense_matrix():
    class Tridiagonal(LinearOperator):
        shape, dtype, device = (4, 4), torch.float64, torch.device("cpu")

        def matmul(self, rhs):
            rhs = self.check_columns(rhs)
            zero = torch.zeros_like(rhs[:1])
            return 3 * rhs - torch.cat([rhs[1:], zero]) - torch.cat([zero, rhs[:-1]])

    rhs = torch.ones(4, 1, dtype=torch.float64)
    solver = Direct()
    solution = solver.solve(solver.prepare(Damped(Tridiagonal(), 1.0)), rhs)
    assert_close(solution.value, torch.linalg.solve(Tridiagonal().to_dense() + torch.eye(4).double(), rhs))
    assert_close(Tridiagonal().diagonal(), torch.full((4,), 3.0).double())


def test_refinement_recovers_what_woodbury_loses_in_float32():
    g = torch.Generator().manual_seed(0)
    low_rank = torch.randn(5000, 64, generator=g) * torch.logspace(1, -3, 64)
    damping = 0.1 * low_rank.square().sum() / 5000  # the automatic rule
    operator = Damped(LowRankPlusDiagonal(torch.zeros(5000), low_rank), damping)
    plain, refined = (Direct(refinements=n).solve(Direct().prepare(operator), low_rank[:, :1]) for n in (0, 1))
    assert plain.stats.relative_residual > 1e-3  # 3e-3 seen: rounding magnified by λ_max/λ = 4e4
    assert refined.stats.relative_residual < 1e-4  # 9e-6 seen
    assert (refined.worst_status, refined.stats.products) == (SolveStatus.CONVERGED, 2)


@pytest.mark.parametrize(
    "operator",
    [
        Dense(torch.diag(torch.tensor([1.0, -1.0]))),
        Diagonal(torch.tensor([1.0, 0.0])),
        Kronecker(torch.eye(1), torch.diag(torch.tensor([1.0, -1.0]))),
        Damped(Kronecker(torch.eye(1), torch.diag(torch.tensor([1.0, -2.0]))), 0.5),
        BlockDiagonal((Diagonal(torch.ones(1)), Dense(-torch.eye(1)))),
    ],
)
def test_an_operator_that_is_not_positive_definite_gives_a_status_and_zeros(operator):
    solution = Direct().solve(Direct().prepare(operator), torch.ones(2, 1))
    assert solution.status.tolist() == [SolveStatus.GREW]
    assert_close(solution.value, torch.zeros(2, 1))
    assert solution.stats.relative_residual.tolist() == [1.0]


def test_shapes_are_checked():
    prepared = Direct().prepare(Dense(torch.eye(2)))
    with pytest.raises(LinalgError, match="multiplies columns"):
        Direct().solve(prepared, torch.ones(3, 1))
    with pytest.raises(LinalgError, match="initial"):
        Direct().solve(prepared, torch.ones(2, 1), torch.ones(2, 2))
