"""Likeness: signs tell angles, pack like any sketch, and nothing that is not finite spoils them."""

import numpy as np
import pytest
import torch

from sgoif.evidence import sign_sketch
from sgoif.influence import Likeness, packed_signs


def words(signs):
    return packed_signs(signs).numpy().view(np.int64)


def apart(one, other):
    return np.bitwise_count((one ^ other).view(np.uint64)).sum(1)


@pytest.mark.parametrize(("width", "rows", "directions"), [(64, 400, 64), (5000, 200, 2048)])  # many are folded
def test_as_many_signs_differ_as_the_angle_says(width, rows, directions):
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    turned = first + 0.5 * torch.randn(rows, width, generator=generator, dtype=torch.float64)
    likeness = Likeness(width, dtype=torch.float64)
    assert likeness.directions.shape == (directions, 256)
    likeness.follow(torch.cat([first, turned]) + 30)
    bits = apart(words(likeness.signs(first + 30)), words(likeness.signs(turned + 30)))
    mean = torch.cat([first, turned]).mean(0)
    angle = torch.acos(torch.cosine_similarity(first - mean, turned - mean))
    assert bits.mean() == pytest.approx(256 * float(angle.mean()) / np.pi, rel=0.02)


def test_a_mean_that_the_features_share_is_taken_out():
    rows = torch.randn(400, 64, generator=torch.Generator().manual_seed(0)) + 30
    likeness = Likeness(64)
    before = words(likeness.signs(rows))
    assert apart(before[1:], before[:-1]).mean() < 10  # any two look the same
    likeness.follow(rows)
    after = words(likeness.signs(rows))
    assert apart(after[1:], after[:-1]).mean() == pytest.approx(128, rel=0.02)


def test_signs_pack_as_the_sketches_of_embeddings_do():
    rows = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)
    directions = np.random.default_rng(0).standard_normal((8, 256)).astype(np.float32)
    signs = torch.from_numpy((rows - rows.mean(0)) @ directions > 0)
    assert (words(signs) == sign_sketch(rows)).all()


def test_what_is_not_finite_has_no_signs_and_does_not_touch_the_mean():
    likeness = Likeness(4)
    likeness.follow(torch.full((3, 4), 2.0))
    likeness.follow(torch.tensor([[float("nan"), 4.0, float("inf"), 2.0]]))
    assert likeness.mean.tolist() == [2.0, 3.0, 2.0, 2.0]
    rows = torch.ones(2, 4)
    rows[1, 0] = float("nan")
    signs = likeness.signs(rows)
    assert signs[0].any()
    assert not signs[1].any()


def test_the_mean_of_a_model_at_rest_is_that_of_all_draws_and_else_of_the_latest():
    draws = [torch.full((2, 3), float(value)) for value in (0, 0, 0, 0, 0, 0, 0, 0, 0, 10)]
    at_rest, moving = Likeness(3, moves=False), Likeness(3)
    for draw in draws:
        at_rest.follow(draw)
        moving.follow(draw)
    assert at_rest.mean.tolist() == pytest.approx([1.0] * 3)
    assert moving.mean.tolist() == pytest.approx([2.0] * 3)


def test_the_directions_come_from_the_seed_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first = Likeness(5, seed=1).directions
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(4)
    assert torch.equal(Likeness(5, seed=1).directions, first)
    assert not torch.equal(Likeness(5, seed=2).directions, first)
