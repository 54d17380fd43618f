"""Per-layer vectors behave as one vector, whatever order their dictionaries were filled in."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from sgoif.errors import LinalgError
from sgoif.linalg import flatten, norm, unflatten
from sgoif.linalg.vectors import dot
from sgoif.records import BlockShape
from tests.linalg.problems import generator, normal, quick, seeds

SHAPES = {"b": BlockShape(1, 2, 3, True), "a": BlockShape(2, 1, 2, False)}


def random_vector(seed, anchors):
    g = generator(seed)
    return {name: normal(g, anchors, *shape.dims) for name, shape in SHAPES.items()}


@quick
@given(seed=seeds, anchors=st.integers(1, 3))
def test_flatten_and_unflatten_are_inverse_and_ordered_by_shapes(seed, anchors):
    x = random_vector(seed, anchors)
    columns = flatten(dict(reversed(x.items())), SHAPES)
    assert columns.shape == (10, anchors)
    assert columns.mT.is_contiguous()
    assert_close(columns[:6], x["b"].reshape(anchors, -1).mT)
    back = unflatten(columns, SHAPES)
    assert list(back) == ["b", "a"]
    for name in x:
        assert torch.equal(back[name], x[name])


@quick
@given(seed=seeds, anchors=st.integers(1, 3))
def test_arithmetic_agrees_with_columns(seed, anchors):
    x, y = random_vector(seed, anchors), random_vector(seed + 1, anchors)
    cx, cy = flatten(x, SHAPES), flatten(y, SHAPES)
    assert_close(dot(x, y), (cx * cy).sum(0))
    assert_close(norm(x), cx.norm(dim=0))


def test_dot_sums_half_precision_in_float32():
    ones = {"b": torch.ones(1, 1, 4000, dtype=torch.bfloat16)}  # a bfloat16 sum would stall at 256
    assert dot(ones, ones).dtype == torch.float32
    assert dot(ones, ones) == 4000


def test_without_anchor_axis_there_is_one_column():
    assert flatten({"a": torch.ones(2, 1, 2)}, {"a": SHAPES["a"]}).shape == (4, 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dot({"a": torch.ones(1, 1, 1)}, {"b": torch.ones(1, 1, 1)}), "differ in"),
        (lambda: flatten({"a": torch.ones(1, 1, 2)}, {"a": SHAPES["a"]}), "reshape"),
        (lambda: flatten({"a": torch.ones(3, 2, 1, 2), "b": torch.ones(2, 1, 2, 3)}, SHAPES), "same number"),
        (lambda: unflatten(torch.ones(3, 1), SHAPES), "columns need"),
    ],
)
def test_callers_mistakes_raise(call, message):
    with pytest.raises(LinalgError, match=message):
        call()
