"""Numerical failure is data: the right status, a finite value, no exception, and no harm to the columns beside it."""

import pytest
import torch
from torch.testing import assert_close

from sgoif.linalg import ConjugateGradient, Dense, Diagonal, Direct, GivenInverse, Neumann, Richardson, SolveStatus
from tests.linalg.problems import generator, normal, spd

ITERATIVE = [
    Richardson(max_iterations=300, tolerance=1e-6),
    Richardson(max_iterations=300, tolerance=1e-6, check_every=0),
    Neumann(max_order=300, tolerance=1e-6, required_fall=0.0),
    ConjugateGradient(max_iterations=50, tolerance=1e-6),
    ConjugateGradient(max_iterations=50, tolerance=1e-6, check_every=3),
]
ALL = [*ITERATIVE, Direct()]
CONVERGED, UNFINISHED, GREW, NON_FINITE = SolveStatus


def names(solvers):
    return [f"{type(s).__name__}-{i}" for i, s in enumerate(solvers)]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e200])
@pytest.mark.parametrize("solver", ALL, ids=names(ALL))
def test_one_bad_column_beside_a_good_one_and_a_zero_one(solver, bad):
    matrix = spd(generator(0), 6)
    rhs = torch.cat(
        [normal(generator(1), 6, 1), torch.full((6, 1), bad, dtype=torch.float64), torch.zeros(6, 1).double()], dim=1
    )
    solution = solver.solve(solver.prepare(Dense(matrix)), rhs)
    assert solution.status.tolist() == [CONVERGED, NON_FINITE, CONVERGED]
    assert solution.status.dtype == torch.int8
    assert solution.worst_status is NON_FINITE
    assert_close(solution.value[:, :1], torch.linalg.solve(matrix, rhs[:, :1]), rtol=1e-4, atol=1e-5)
    assert torch.equal(solution.value[:, 1:], torch.zeros(6, 2).double())
    assert not solution.stats.relative_residual.isnan().any()


@pytest.mark.parametrize("solver", ALL, ids=names(ALL))
def test_operators_that_cannot_be_solved(solver):
    broken, indefinite = spd(generator(0), 2), Diagonal(torch.tensor([1.0, -0.5]).double())
    broken[1, 1] = float("nan")
    rhs = torch.ones(2, 1).double()
    for operator, status in ((Dense(broken), NON_FINITE), (indefinite, GREW)):
        solution = solver.solve(solver.prepare(operator), rhs)
        assert solution.status.tolist() == [status]
        assert torch.isfinite(solution.value).all()
    assert (rhs - indefinite @ solution.value).norm() <= 2**0.5 + 1e-9  # no worse than zeros


@pytest.mark.parametrize(
    "solver",
    [
        Richardson(rho=3.0, max_iterations=200),
        Richardson(rho=3.0, max_iterations=3),  # too short to pass the growth limit: judged at the end
        Neumann(GivenInverse(Diagonal(torch.tensor([3.0]).double()))),
    ],
)
def test_growing_iteration_gives_back_its_best_iterate(solver):
    solution = solver.solve(solver.prepare(Diagonal(torch.ones(1).double())), torch.ones(1, 1).double())
    assert solution.status.tolist() == [GREW]
    assert solution.value.tolist() == [[0.0]]
    assert solution.stats.relative_residual.tolist() == [1.0]


@pytest.mark.parametrize(
    "solver",
    [Richardson(max_iterations=3), Neumann(max_order=2, required_fall=0.0), ConjugateGradient(max_iterations=3)],
)
def test_spent_budget_is_unfinished_with_the_residual_reached(solver):
    matrix, rhs = spd(generator(0), 20, condition=1e6), normal(generator(1), 20, 2)
    solution = solver.solve(solver.prepare(Dense(matrix)), rhs)
    assert solution.status.tolist() == [UNFINISHED, UNFINISHED]
    assert solution.stats.iterations == 3
    true = (rhs - matrix @ solution.value).norm(dim=0) / rhs.norm(dim=0)
    assert_close(solution.stats.relative_residual, true)


@pytest.mark.parametrize("solver", ITERATIVE, ids=names(ITERATIVE))
def test_a_broken_start_is_replaced_by_zeros(solver):
    matrix, rhs = spd(generator(0), 5), normal(generator(1), 5, 2)
    start = torch.linalg.solve(matrix, rhs)
    start[0, 0] = float("nan")
    solution = solver.solve(solver.prepare(Dense(matrix)), rhs, start)
    assert solution.status.tolist() == [CONVERGED, CONVERGED]
    if getattr(solver, "check_every", 0):  # an early end does not change the answer
        assert solution.stats.iterations < getattr(solver, "max_iterations", 301)
    assert_close(solution.value, torch.linalg.solve(matrix, rhs), rtol=1e-4, atol=1e-5)


def test_no_columns_is_no_problem():
    for solver in ALL:
        assert solver.solve(solver.prepare(Dense(torch.eye(2))), torch.ones(2, 0)).worst_status is CONVERGED
