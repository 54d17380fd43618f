"""Richardson converges to what it says it does: plain, leaking, scheduled, and with a two-level preconditioner."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from sgoif.errors import LinalgError
from sgoif.linalg import (
    Damped,
    Dense,
    Diagonal,
    GivenInverse,
    Kronecker,
    LowRankPlusDiagonal,
    Richardson,
    SolveStatus,
    TwoLevel,
)
from tests.linalg.problems import few, generator, normal, quick, seeds, spd, structured


@pytest.mark.parametrize("kind", ["dense", "kronecker", "lowrank", "blocks"])  # each finds its step in another way
@settings(few, max_examples=3)
@given(seed=seeds)
def test_richardson_converges_on_every_structure(kind, seed):
    operator, dense = structured(kind, seed)
    operator, dense = Damped(operator, 0.2), dense + 0.2 * torch.eye(dense.shape[0]).double()
    rhs = normal(generator(seed + 1), dense.shape[0], 2)
    solver = Richardson(max_iterations=3000, tolerance=1e-8, check_every=50)
    solution = solver.solve(solver.prepare(operator), rhs)
    assert solution.worst_status is SolveStatus.CONVERGED
    assert_close(solution.value, torch.linalg.solve(dense, rhs), rtol=1e-5, atol=1e-6)
    residual = (rhs - dense @ solution.value).norm(dim=0) / rhs.norm(dim=0)
    assert_close(residual, solution.stats.relative_residual, rtol=1e-3, atol=1e-12)


@quick
@given(seed=seeds, start=st.booleans())
def test_steps_and_solve_walk_the_same_path(seed, start):
    matrix, rhs = spd(generator(seed), 6), normal(generator(seed + 1), 6, 2)
    phi = normal(generator(seed + 2), 6, 2) if start else torch.zeros(6, 2).double()
    solver = Richardson(max_iterations=5, tolerance=0.0, check_every=0)
    prepared = solver.prepare(Dense(matrix))
    solution = solver.solve(prepared, rhs, phi if start else None)
    for t in range(5):
        before = phi
        phi, residual = solver.step(prepared, phi, rhs, t)
        assert_close(residual, rhs - matrix @ before)  # of the iterate given
    assert_close(solution.value, phi)
    assert solution.stats.products == 5 + start


@few
@given(seed=seeds, horizon=st.sampled_from([2.0, 20.0]))
def test_the_leak_moves_the_fixed_point_to_the_damped_solution(seed, horizon):
    matrix, rhs = spd(generator(seed), 6, condition=1e4), normal(generator(seed + 1), 6, 1)
    solver = Richardson(leak_horizon=horizon, max_iterations=2000, tolerance=1e-10)
    solution = solver.solve(solver.prepare(Dense(matrix)), rhs)
    leak = torch.linalg.eigvalsh(matrix)[-1] / horizon
    assert_close(solution.value, torch.linalg.solve(matrix + leak * torch.eye(6).double(), rhs), rtol=1e-6, atol=1e-8)
    assert (solution.value - torch.linalg.solve(matrix, rhs)).norm() > 0.1  # control: without the leak it is elsewhere


def test_robbins_monro_satisfies_its_condition_and_converges_on_a_convex_problem():
    matrix, rhs = spd(generator(0), 5, condition=3.0), normal(generator(1), 5, 1)
    solver = Richardson(schedule="robbins-monro", max_iterations=4000, tolerance=1e-6, check_every=100)
    prepared = solver.prepare(Dense(matrix))
    steps = torch.stack([solver._rho_at(prepared, t) for t in (0, 1, 999)])
    assert_close(steps, prepared.rho / torch.tensor([1.0, 2.0, 1000.0]).double() ** 0.6)
    solution = solver.solve(prepared, rhs)
    assert solution.worst_status is SolveStatus.CONVERGED
    assert_close(solution.value, torch.linalg.solve(matrix, rhs), rtol=1e-4, atol=1e-5)


def iteration_matrix(matrix, basis):
    return torch.eye(matrix.shape[0]).double() - TwoLevel(basis).prepare(Dense(matrix)).apply(matrix)


@quick
@given(seed=seeds, rank=st.integers(1, 5), condition=st.sampled_from([10.0, 1e4]))
def test_two_level_contracts_in_the_h_norm_for_any_basis(seed, rank, condition):
    matrix = spd(generator(seed), 8, condition)
    step = iteration_matrix(matrix, normal(generator(seed + 1), 8, rank))
    values, vectors = torch.linalg.eigh(matrix)
    root, inverse_root = vectors * values.sqrt() @ vectors.mT, vectors * values.rsqrt() @ vectors.mT
    assert torch.linalg.matrix_norm(root @ step @ inverse_root, 2) < 1


def test_two_level_with_the_slow_eigenvectors_is_fast_and_leaves_nothing_of_them():
    matrix, rhs = spd(generator(6), 12, condition=1e4), normal(generator(7), 12, 1)
    values, vectors = torch.linalg.eigh(matrix)
    basis, rest = vectors[:, :8], vectors[:, 8:]
    left = rest * (1 - values[8:] / values[-1]) @ rest.mT  # nothing of what the basis spans
    assert_close(iteration_matrix(matrix, basis), left, rtol=0, atol=1e-7)
    plain, helped = (Richardson(preconditioner=p, max_iterations=300, tolerance=1e-6) for p in (None, TwoLevel(basis)))
    assert plain.solve(plain.prepare(Dense(matrix)), rhs).worst_status is SolveStatus.UNFINISHED
    assert helped.solve(helped.prepare(Dense(matrix)), rhs).worst_status is SolveStatus.CONVERGED


def test_two_level_with_the_dominant_eigenvectors_steps_by_the_next_eigenvalue():
    matrix = spd(generator(6), 12, condition=1e4)
    values, vectors = torch.linalg.eigh(matrix)
    prepared = TwoLevel(vectors[:, 8:]).prepare(Dense(matrix))
    assert 1 / values[7] <= prepared.rho < 1.1 / values[7]
    inverse = prepared.apply(torch.eye(12).double())
    assert_close(inverse, inverse.mT)  # fit for conjugate gradients


def test_two_level_survives_a_broken_basis_and_works_with_the_leak():
    matrix, rhs = spd(generator(8), 6), normal(generator(9), 6, 1)
    for basis in (torch.full((6, 2), float("nan")).double(), torch.zeros(6, 2).double()):
        solver = Richardson(preconditioner=TwoLevel(basis), leak_horizon=5.0, max_iterations=500, tolerance=1e-9)
        solution = solver.solve(solver.prepare(Dense(matrix)), rhs)
        leak = torch.linalg.eigvalsh(matrix)[-1] / 5
        assert_close(
            solution.value, torch.linalg.solve(matrix + leak * torch.eye(6).double(), rhs), rtol=1e-6, atol=1e-8
        )


@few
@given(seed=seeds)
def test_symmetric_preconditioners_get_a_safe_step(seed):
    matrix, rhs = spd(generator(seed), 6), normal(generator(seed + 1), 6, 1)
    for inverse in (Diagonal(matrix.diagonal().reciprocal()), Dense(5 * spd(generator(seed + 2), 6, condition=3.0))):
        solver = Richardson(preconditioner=GivenInverse(inverse), max_iterations=2000, tolerance=1e-8)
        solution = solver.solve(solver.prepare(Dense(matrix)), rhs)
        assert solution.worst_status is SolveStatus.CONVERGED


def test_power_iteration_is_warm_started_from_the_previous_preparation():
    operator = LowRankPlusDiagonal(torch.ones(40).double(), normal(generator(0), 40, 3))
    solver = Richardson(leak_horizon=100.0)
    first = solver.prepare(operator)
    truth = torch.linalg.eigvalsh(operator.to_dense())[-1]
    found = [first.lambda_max]
    prepared = first
    for _ in range(5):  # a few steps more each, not 32 afresh
        prepared = solver.prepare(operator, prepared.vectors)
        found.append(prepared.lambda_max)
    assert all(0.99 * truth <= value <= truth * (1 + 1e-12) for value in found)
    assert prepared.vectors[0].shape == (1, 40, 1)


def test_step_runs_on_the_meta_device_where_any_host_sync_would_raise():
    meta = torch.device("meta")
    operator = Damped(Kronecker(torch.eye(3, device=meta), torch.eye(4, device=meta)), torch.ones((), device=meta))
    rhs = torch.ones(12, 2, device=meta)
    assert operator.matmul(rhs).shape == (12, 2)
    for preconditioner in (None, TwoLevel(torch.ones(12, 2, device=meta))):
        solver = Richardson(leak_horizon=800.0, preconditioner=preconditioner, check_every=0, max_iterations=2)
        prepared = solver.prepare(operator)
        phi, residual = solver.step(prepared, rhs, rhs, torch.ones((), device=meta))
        assert phi.shape == residual.shape == (12, 2)
        assert solver.solve(prepared, rhs).status.shape == (2,)  # without checks, the whole solve does not sync either


def test_rho_given_is_rho_used_and_settings_are_checked():
    assert Richardson(rho=0.25).prepare(Diagonal(torch.ones(2))).rho == 0.25
    for mistake, message in [
        ({"schedule": "cosine"}, "robbins"),
        ({"leak_horizon": 0}, "leak"),
        ({"rho": -1.0}, "rho"),
    ]:
        with pytest.raises(LinalgError, match=message):
            Richardson(**mistake)
    with pytest.raises(LinalgError, match="basis"):
        TwoLevel(torch.ones(2, 3))
