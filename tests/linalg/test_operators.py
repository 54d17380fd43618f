"""Every structured operator equals its dense twin."""

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
