"""Both ends of the spectrum, against dense eigenvalues."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from sgoif.errors import LinalgError
from sgoif.linalg import Damped, Dense, Diagonal, Kronecker
from sgoif.linalg.spectrum import (
    exact_lambda_max,
    extreme_ritz,
    follow_lambda_max,
    lambda_max,
    power_iteration,
    random_columns,
)
from tests.linalg.problems import KINDS, few, generator, normal, quick, seeds, spd, structured


@pytest.mark.parametrize("kind", KINDS)
@few
@given(seed=seeds)
def test_lambda_max_equals_the_dense_eigenvalue_where_it_claims_to_be_exact(kind, seed):
    operator, dense = structured(kind, seed)
    exact = exact_lambda_max(operator)
    values, eigenvectors = torch.linalg.eigh(dense)
    truth = values[-1]
    assert_close(power_iteration(operator, eigenvectors[:, -1:], 1)[0][0], truth)  # from the start that it was given
    assert (exact is None) == (kind in ("lowrank", "damped", "blocks"))  # where a low rank is inside
    if exact is not None:
        assert_close(exact, truth)
    estimate = lambda_max(operator)
    assert estimate <= truth * (1 + 1e-9)  # never from above
    assert estimate >= 0.9 * truth


def test_lambda_max_of_an_indefinite_kronecker_looks_at_both_ends():
    assert_close(lambda_max(Kronecker(-3 * torch.eye(2), torch.diag(torch.tensor([-2.0, 1.0])))), torch.tensor(6.0))


@quick
@given(seed=seeds, n=st.integers(1, 12))
def test_lanczos_finds_both_ends_when_run_to_the_end(seed, n):
    matrix = spd(generator(seed), n, condition=100.0)
    smallest, largest = extreme_ritz(Dense(matrix), normal(generator(seed + 1), n, 1), steps=n)
    values = torch.linalg.eigvalsh(matrix)
    # Reason: a start nearly orthogonal to an eigenvector finds it with fewer digits.
    assert_close(torch.stack([smallest, largest]), values[[0, -1]], rtol=1e-5, atol=1e-8)


def test_lanczos_survives_an_exhausted_krylov_space():
    operator = Diagonal(torch.tensor([2.0, 2.0, 2.0, 5.0, 5.0]))
    smallest, largest = extreme_ritz(operator, torch.ones(5, 1), steps=5)
    assert_close(torch.stack([smallest, largest]), torch.tensor([2.0, 5.0]))  # no ghost eigenvalue at 0


def test_zero_operator_has_finite_answers():
    zero = Dense(torch.zeros(3, 3))
    value, vector = power_iteration(zero, torch.ones(3, 1), 5)
    assert value == 0
    assert torch.isfinite(vector).all()
    assert torch.isfinite(torch.stack(extreme_ritz(zero, torch.ones(3, 1), 3))).all()


def test_random_columns_leave_the_global_state_alone():
    before = torch.get_rng_state()
    first = random_columns(Dense(torch.eye(3)), 2)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first, random_columns(Dense(torch.eye(3)), 2))


def test_callers_mistakes_raise():
    with pytest.raises(LinalgError, match="one start column"):
        extreme_ritz(Dense(torch.eye(2)), torch.ones(2, 2), 1)
    with pytest.raises(LinalgError, match="at least one"):
        power_iteration(Dense(torch.eye(2)), torch.ones(2, 1), 0)


def test_the_top_of_a_moving_operator_is_followed_without_decomposing_it():
    rows = torch.randn(200, 300, generator=generator(0)) * torch.linspace(3, 0.1, 300) ** 2
    rows = rows - 4 * torch.nn.functional.one_hot(torch.arange(200) % 20, 300)
    left, right, vectors = rows.mT @ rows / 200, torch.eye(3) * 2, None
    for step in range(30):  # a direction comes up that the first vectors did not hold
        left = 0.95 * left + 0.02 * step * torch.diag(torch.nn.functional.one_hot(torch.tensor(280), 300).float())
        operator = Damped(Kronecker(left, right), 0.5)
        found, vectors = follow_lambda_max(operator, vectors)
        exact = exact_lambda_max(operator)
        assert 0.8 * exact <= found <= exact * (1 + 1e-5)  # twice the step would still converge
    assert found >= 0.999 * exact


@pytest.mark.parametrize("matrix", [torch.zeros(3, 3), torch.full((3, 3), torch.nan)])
def test_a_matrix_that_is_none_does_not_spoil_what_follows(matrix):
    _, vectors = follow_lambda_max(Kronecker(matrix, torch.eye(2)))
    value, _ = follow_lambda_max(Kronecker(torch.diag(torch.tensor([1.0, 2.0, 9.0])), torch.eye(2)), vectors)
    for _ in range(10):
        value, vectors = follow_lambda_max(Kronecker(torch.diag(torch.tensor([1.0, 2.0, 9.0])), torch.eye(2)), vectors)
    assert value > 8.9


@pytest.mark.parametrize("kind", KINDS)
def test_every_structure_can_be_followed(kind):
    operator, dense = structured(kind, 0)
    top = torch.linalg.eigvalsh(dense)[-1]
    vectors = None
    for _ in range(20):
        found, vectors = follow_lambda_max(operator, vectors)
    assert_close(found, top.to(found.dtype), rtol=0.05, atol=0)


def test_lanczos_invents_no_eigenvalue_beside_one_that_is_far_out():
    """Of the vectors that are left little is not rounding: made orthogonal once only, the smallest value is 70 off."""
    g = generator(0)
    rotation = torch.linalg.qr(normal(g, 60, 60))[0]
    values = torch.cat([1 + 1e-5 * normal(g, 59), torch.tensor([1e3], dtype=torch.float64)])
    matrix = (rotation * values) @ rotation.mT
    found = extreme_ritz(Dense((matrix + matrix.mT) / 2), normal(g, 60, 1), steps=60)
    assert_close(torch.stack(found), values.sort().values[[0, -1]], rtol=1e-6, atol=0.0)
