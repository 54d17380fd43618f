"""The Neumann series in the right order, its bounds (paper, Lemma 4), and conjugate gradients with a Nyström sketch."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from sgoif.errors import LinalgError
from sgoif.linalg import (
    ConjugateGradient,
    Damped,
    Dense,
    Diagonal,
    GivenInverse,
    Neumann,
    NystromPreconditioner,
    SolveStatus,
    TwoLevel,
)
from sgoif.linalg.preconditioner import NystromSketch
from tests.linalg.problems import generator, normal, quick, seeds, spd


def non_commuting(seed, n=5):
    """``H`` and a ``P⁻¹`` that does not commute with it, with ``‖I - P⁻¹H‖ < 1`` in the Euclidean operator norm."""
    g = generator(seed)
    matrix = spd(g, n, condition=4.0)
    noise = normal(g, n, n)
    noise = noise @ noise.mT
    inverse = torch.linalg.inv(matrix + 0.2 * noise / torch.linalg.matrix_norm(noise, 2))
    return matrix, 0.5 * (inverse + inverse.mT), normal(g, n, 2)


def series(matrix, inverse, rhs, order):
    eye = torch.eye(matrix.shape[0]).double()
    return sum(torch.linalg.matrix_power(eye - inverse @ matrix, k) @ inverse @ rhs for k in range(order + 1))


@quick
@given(seed=seeds, order=st.integers(0, 8))
def test_neumann_equals_the_dense_sum_for_non_commuting_p_and_lemma_4_bounds_its_error(seed, order):
    matrix, inverse, rhs = non_commuting(seed)
    solver = Neumann(GivenInverse(Dense(inverse)), max_order=order, required_fall=0.0, tolerance=0.0)
    solution = solver.solve(solver.prepare(Dense(matrix)), rhs)
    kept = solution.status == SolveStatus.UNFINISHED  # a column whose Euclidean residual rose has stopped earlier
    dense = series(matrix, inverse, rhs, order)
    assert_close(solution.value[:, kept], dense[:, kept])
    assert solution.stats.products == order + 1
    # Lemma 4(a), in one norm throughout: ‖H⁻¹g - φ_K‖ ≤ ‖P⁻¹‖ q^(K+1) ‖g‖ / (1 - q), with q = ‖I - P⁻¹H‖ < 1.
    q = torch.linalg.matrix_norm(torch.eye(5).double() - inverse @ matrix, 2)
    assert q < 0.9  # P = H + N with ‖N‖ = 0.2 and P ⪰ H ⪰ 1/4
    bound = torch.linalg.matrix_norm(inverse, 2) * q ** (order + 1) * rhs.norm(dim=0) / (1 - q)
    assert ((torch.linalg.solve(matrix, rhs) - dense).norm(dim=0) <= bound * (1 + 1e-9)).all()


def test_neumann_tends_to_the_inverse():
    matrix, inverse, rhs = non_commuting(0)
    solver = Neumann(GivenInverse(Dense(inverse)), max_order=80, required_fall=0.0, tolerance=1e-10, check_every=10)
    solution = solver.solve(solver.prepare(Dense(matrix)), rhs)
    assert solution.worst_status is SolveStatus.CONVERGED
    assert_close(solution.value, torch.linalg.solve(matrix, rhs), rtol=1e-7, atol=1e-8)


def test_order_adapts_to_each_column():
    operator = Diagonal(torch.tensor([1.0, 0.02]).double())
    rhs = torch.eye(2).double()  # one easy column, one on a slow mode that falls by 2% per term
    solver = Neumann(max_order=20, tolerance=1e-6)
    solution = solver.solve(solver.prepare(operator), rhs)
    assert solution.status.tolist() == [SolveStatus.CONVERGED, SolveStatus.UNFINISHED]
    assert_close(solution.stats.relative_residual, torch.tensor([0.0, 0.98]).double())  # stopped after its first term
    eager = Neumann(max_order=20, tolerance=1e-6, required_fall=0.0)
    assert eager.solve(eager.prepare(operator), rhs).stats.relative_residual[1] < 0.98**20


@quick
@given(seed=seeds, distinct=st.integers(1, 5))
def test_cg_ends_after_as_many_steps_as_there_are_distinct_eigenvalues(seed, distinct):
    rotation, _ = torch.linalg.qr(normal(generator(seed), 12, 12))
    values = torch.arange(1, distinct + 1).double().repeat(12)[:12]
    matrix = (rotation * values) @ rotation.mT
    rhs = normal(generator(seed + 1), 12, 2)
    solver = ConjugateGradient(max_iterations=distinct, tolerance=1e-8)
    solution = solver.solve(solver.prepare(Dense(matrix)), rhs)
    assert solution.worst_status is SolveStatus.CONVERGED
    assert_close(solution.value, torch.linalg.solve(matrix, rhs), rtol=1e-7, atol=1e-8)
    assert solution.stats.products == distinct + 1


@quick
@given(seed=seeds)
def test_cg_from_a_start_with_jacobi_and_with_two_levels(seed):
    matrix, rhs = spd(generator(seed), 10), normal(generator(seed + 1), 10, 2)
    jacobi, two_level = GivenInverse(Diagonal(matrix.diagonal().reciprocal())), TwoLevel(normal(generator(3), 10, 4))
    for preconditioner in (jacobi, two_level):
        solver = ConjugateGradient(preconditioner, max_iterations=40, tolerance=1e-9, check_every=5)
        solution = solver.solve(solver.prepare(Dense(matrix)), rhs, normal(generator(seed + 2), 10, 2))
        assert_close(solution.value, torch.linalg.solve(matrix, rhs), rtol=1e-6, atol=1e-7)


def test_cg_does_not_claim_convergence_that_the_true_residual_denies():
    matrix = spd(generator(0), 60, condition=1e12).float()  # far beyond float32
    solver = ConjugateGradient(max_iterations=400, tolerance=1e-7)
    solution = solver.solve(solver.prepare(Dense(matrix)), torch.ones(60, 1))
    true = (torch.ones(60, 1) - matrix @ solution.value).norm(dim=0) / 60**0.5
    assert_close(solution.stats.relative_residual, true, rtol=1e-3, atol=1e-7)
    assert (solution.status == SolveStatus.CONVERGED) <= (true <= 2e-5)


@quick
@given(seed=seeds, rank=st.integers(1, 5), extra=st.integers(0, 4))
def test_nystrom_is_exact_once_its_rank_covers_the_matrix(seed, rank, extra):
    factor = normal(generator(seed), 14, rank)
    operator = Dense(factor @ factor.mT)
    sketch = NystromSketch.draw(operator, rank + extra, generator(seed + 1))
    scale = torch.linalg.matrix_norm(operator.matrix, 2)
    error = torch.linalg.matrix_norm(sketch.matmul(torch.eye(14).double()) - operator.matrix, 2)
    assert error <= 1e-6 * scale  # the shift costs half the digits at worst: sqrt(eps) is 1.5e-8
    assert_close(sketch.vectors.mT @ sketch.vectors, torch.eye(rank + extra).double())


def test_nystrom_is_a_lower_bound_and_preconditioning_lowers_the_condition_number():
    rotation, _ = torch.linalg.qr(normal(generator(0), 40, 40))
    matrix = (rotation * torch.logspace(4, -4, 40, dtype=torch.float64)) @ rotation.mT
    sketch = NystromSketch.draw(Dense(matrix), 25, generator(1))
    gap = matrix - sketch.matmul(torch.eye(40).double())
    assert torch.linalg.eigvalsh(gap)[0] > -1e-8
    operator = Damped(Dense(matrix), 0.1)
    prepared = NystromPreconditioner(25, generator(1)).prepare(operator)
    inverse = prepared.apply(torch.eye(40).double())
    assert_close(inverse, inverse.mT)
    before = torch.linalg.eigvalsh(operator.to_dense())
    after = torch.linalg.eigvals(inverse @ operator.to_dense()).real
    assert (before[-1] / before[0]) > 1e4
    assert after.max() / after.min() < 10  # near (l_r + μ)/μ = 1.8
    rhs = normal(generator(2), 40, 2)
    plain, helped = (ConjugateGradient(p, max_iterations=10) for p in (None, NystromPreconditioner(25)))
    worst_plain = plain.solve(plain.prepare(operator), rhs).stats.relative_residual.max()
    worst_helped = helped.solve(helped.prepare(operator), rhs).stats.relative_residual.max()
    assert worst_helped < 0.1 * worst_plain


def test_nystrom_of_a_broken_operator_is_flagged_and_harmless():
    prepared = NystromPreconditioner(2).prepare(Dense(torch.full((3, 3), float("nan"))))
    assert not prepared.sketch.ok
    assert_close(prepared.apply(torch.ones(3, 1)), torch.ones(3, 1))
    with pytest.raises(LinalgError, match="rank"):
        NystromPreconditioner(0)
