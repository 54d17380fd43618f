"""Factorisations equal the dense truth, and never raise for values."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from sgoif.errors import LinalgError
from sgoif.linalg.factor import DiagonalFactor, WoodburyInverse, cholesky, eigh, eigvalsh
from tests.linalg.problems import generator, normal, quick, seeds, spd


@quick
@given(p=st.integers(1, 12), k=st.integers(0, 6), n=st.integers(1, 4), seed=seeds)
def test_woodbury_inverse_matches_dense_solve(p, k, n, seed):
    g = generator(seed)
    diag, low_rank, rhs = normal(g, p).abs() + 0.1, normal(g, p, k), normal(g, p, n)
    inverse = WoodburyInverse.factorise(diag, low_rank)
    assert inverse.ok
    assert_close(inverse.apply(rhs), torch.linalg.solve(torch.diag(diag) + low_rank @ low_rank.mT, rhs))


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_woodbury_without_positive_diagonal_is_flagged_and_finite(bad):
    inverse = WoodburyInverse.factorise(torch.tensor([1.0, bad]), torch.ones(2, 1))
    assert not inverse.ok
    assert_close(inverse.apply(torch.ones(2, 1)), torch.ones(2, 1))


@quick
@given(seed=seeds, n=st.integers(1, 6))
def test_eigh_and_cholesky_rebuild_their_matrix(seed, n):
    matrix = spd(generator(seed), n, batch=(2,))
    eigen, factor = eigh(matrix), cholesky(matrix)
    assert_close((eigen.vectors * eigen.values[..., None, :]) @ eigen.vectors.mT, matrix)
    assert_close(eigvalsh(matrix), eigen.values)
    assert_close(factor.lower @ factor.lower.mT, matrix)
    assert_close(factor.solve(matrix), torch.eye(n).double().expand(2, n, n))
    assert eigen.ok.all()
    assert factor.ok.all()


def test_one_bad_matrix_does_not_spoil_its_batch():
    matrix = torch.stack([torch.full((2, 2), float("nan")), torch.eye(2) * 4])
    eigen, factor = eigh(matrix), cholesky(matrix)
    assert eigen.ok.tolist() == factor.ok.tolist() == [False, True]
    assert_close(eigen.values, torch.tensor([[1.0, 1.0], [4.0, 4.0]]))
    assert_close(factor.lower, torch.stack([torch.eye(2), torch.eye(2) * 2]))
    assert_close(eigvalsh(matrix), eigen.values)


def test_eigh_symmetrises_and_clamps_on_request():
    assert eigh(torch.diag(torch.tensor([-1e-9, 1.0])), nonnegative=True).values[0] == 0
    assert_close(eigh(torch.tensor([[0.0, 2.0], [0.0, 0.0]])).values, torch.tensor([-1.0, 1.0]))


def test_shapes_are_checked():
    with pytest.raises(LinalgError, match="square"):
        eigh(torch.ones(2, 3))
    with pytest.raises(LinalgError, match="low_rank"):
        WoodburyInverse.factorise(torch.ones(2), torch.ones(3, 1))


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_a_diagonal_that_is_not_positive_is_flagged_and_stays_finite(bad):
    found = DiagonalFactor.of(torch.tensor([[2.0, 4.0], [2.0, bad]]))
    assert found.ok.tolist() == [True, False]
    assert_close(found.inverse()[0], torch.tensor([0.5, 0.25]))
    assert found.solve(torch.ones(2, 2, 1)).isfinite().all()
