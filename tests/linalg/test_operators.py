"""Every structured operator equals its dense twin."""

from __future__ import annotations

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
    Kronecker,
    LinearOperator,
    LowRankPlusDiagonal,
    RotatedDiagonal,
)
from tests.linalg.problems import KINDS, few, generator, normal, seeds, structured

dims = st.integers(1, 3)


@pytest.mark.parametrize("kind", KINDS)
@few
@given(seed=seeds, groups=dims, outputs=dims, inputs=dims, columns=st.integers(0, 3))
def test_operator_equals_its_dense_twin(kind, seed, groups, outputs, inputs, columns):
    operator, dense = structured(kind, seed, groups, outputs, inputs)
    rhs = normal(generator(seed + 1), dense.shape[0], columns)
    assert operator.shape == tuple(dense.shape)
    assert_close(operator @ rhs, dense @ rhs)
    assert_close(operator.diagonal(), dense.diagonal())
    assert_close(operator.to_dense(), dense)


@pytest.mark.parametrize("kind", KINDS)
@few
@given(seed=seeds)
def test_operator_is_linear_and_symmetric(kind, seed):
    operator, dense = structured(kind, seed)
    x, y = normal(generator(seed + 1), dense.shape[0], 2), normal(generator(seed + 2), dense.shape[0], 2)
    assert_close(operator @ (2 * x - y), 2 * (operator @ x) - operator @ y)
    assert_close(y.mT @ (operator @ x), (operator @ y).mT @ x)


def test_base_class_defaults_use_products_only():
    class Twice(LinearOperator):
        shape, dtype, device = (3, 3), torch.float64, torch.device("cpu")

        def matmul(self, rhs):
            return 2 * self.check_columns(rhs)

    assert_close(Twice().to_dense(), 2 * torch.eye(3, dtype=torch.float64))
    assert_close(Twice().diagonal(), torch.full((3,), 2.0, dtype=torch.float64))


def test_kronecker_takes_two_dimensional_factors_as_one_group():
    left, right = torch.tensor([[2.0, 1.0], [1.0, 2.0]]), torch.eye(3)
    assert_close(Kronecker(left, right).to_dense(), torch.kron(left, right))


def test_kronecker_layout_is_outputs_by_inputs():
    left, right = torch.diag(torch.tensor([1.0, 10.0])), torch.diag(torch.tensor([1.0, 2.0, 3.0]))
    block = Kronecker(left, right).matmul(torch.ones(6, 1)).reshape(2, 3)
    assert_close(block, torch.tensor([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]]))


def test_narrow_right_hand_sides_are_widened_and_wide_ones_refused():
    operator = Dense(torch.eye(2))
    assert operator.matmul(torch.ones(2, 1, dtype=torch.bfloat16)).dtype == torch.float32
    with pytest.raises(LinalgError, match="float64"):
        operator.matmul(torch.ones(2, 1, dtype=torch.float64))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Dense(torch.ones(2, 3)), "got \\(2, 3\\)"),
        (lambda: Dense(torch.eye(2, dtype=torch.float16)), "float16"),
        (lambda: Diagonal(torch.ones(2, 2)), "flatten"),
        (lambda: LowRankPlusDiagonal(torch.ones(2), torch.ones(3, 1)), "low_rank"),
        (lambda: LowRankPlusDiagonal(torch.ones(2), torch.ones(2, 1).double()), "one dtype"),
        (lambda: Kronecker(torch.ones(2, 2, 2), torch.ones(3, 2, 2)), "per group"),
        (lambda: RotatedDiagonal(torch.eye(2), torch.eye(2), torch.ones(1, 2, 3)), "values"),
        (lambda: Damped(Dense(torch.eye(2)), torch.ones(2)), "one number"),
        (lambda: BlockDiagonal(()), "at least one"),
        (lambda: BlockDiagonal((Dense(torch.eye(1)), Dense(torch.eye(1).double()))), "one dtype"),
        (lambda: Dense(torch.eye(2)) @ torch.ones(2), "column axis"),
        (lambda: Diagonal(torch.ones(2)) @ torch.ones(1, 4), "got \\(1, 4\\)"),  # would broadcast in silence
    ],
)
def test_callers_mistakes_raise(build, message):
    with pytest.raises(LinalgError, match=message):
        build()
