"""The simulation of verifications: worlds are what they claim to be, and coverage counts what it should."""

import numpy as np
import pytest

from benchmarks import verify


@pytest.mark.parametrize("kind", verify.KINDS)
def test_a_world_has_its_rate_and_its_ranking_sees_what_it_should(kind):
    world = verify.make_world(kind, 5_000, 0.1, np.random.default_rng(0))
    first = world.wrong[:500].mean()
    assert world.wrong.sum() == 500
    assert first < 0.2 if kind == "unseen" else first > 0.2
    assert world.num_flagged <= world.num_doubtful


def test_coverage_of_a_census_is_complete():
    world = verify.make_world("weak", 50, 0.1, np.random.default_rng(0))
    found = verify.cover([world], 3, np.random.default_rng(0))
    assert found["all labels"]["coverage"] == 1 and found["all labels"]["median_width"] == 0


def test_a_set_far_below_a_limit_is_fine_and_one_far_above_exceeds_it():
    rng = np.random.default_rng(0)
    clean, bad = (verify.make_world("good", 2_000, rate, rng) for rate in (0.001, 0.4))
    assert verify.judge([clean], 0.1, 60, 20, rng)["fine"] > 0.9
    assert verify.judge([bad], 0.1, 60, 20, rng)["exceeded"] > 0.9
