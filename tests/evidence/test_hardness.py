import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgoif.evidence import calibrate, make_canaries, rescore
from sgoif.evidence.hardness import ShareLine, hardness, shift_line, straightened
from sgoif.evidence.logistic import sigmoid
from tests.evidence.worlds import make_world


def unlabelled(seed, line, n=20_000):
    """Unit normals at ±1, of which ``2x`` is the log ratio, positive as often as the line says."""
    rng = np.random.default_rng(seed)
    hard = rng.normal(size=n)
    positive = rng.random(n) < sigmoid(line.log_odds(hard))
    return 2 * (rng.normal(size=n) + np.where(positive, 1, -1)), hard, positive


def both(world):
    """What is calibrated by hardness, and what would be without."""
    signals, anchors = rescore(world.holdout, world.seen, world.given, world.holdout.snapshots[0])
    canaries = make_canaries(world.holdout)
    found = [calibrate(canaries, signals, world.given, anchors, by_hardness=which).believed for which in (True, False)]
    return found[0], found[1], signals


@given(seed=st.integers(0, 2**31), level=st.floats(-3, 0), slope=st.floats(-1, 1.5))
def test_the_line_is_recovered_without_labels(seed, level, slope):
    ratio, hard, _ = unlabelled(seed, ShareLine(level, slope))
    found = shift_line(ratio, hard, ShareLine(0.0, 0.0))
    assert found.level == pytest.approx(level, abs=0.3)  # 4 standard errors at the lowest level, 5% errors
    assert found.slope == pytest.approx(slope, abs=0.3)


def test_hardness_that_does_not_vary_has_no_slope():
    ratio, hard, positive = unlabelled(0, ShareLine(-2.0, 0.0))
    found = shift_line(ratio, np.zeros_like(hard), ShareLine(0.0, 0.0))
    assert found.slope == pytest.approx(0, abs=1e-6)
    assert sigmoid(found.log_odds(np.zeros(1)))[0] == pytest.approx(positive.mean(), abs=0.02)


def test_straightened_odds_promise_the_errors_that_the_line_does_in_the_order_of_the_ratio():
    line = ShareLine(-2.0, 1.0)
    ratio, hard, positive = unlabelled(0, line)
    stretch, shift = straightened(ratio, hard, line)
    assert stretch > 0
    p = sigmoid(stretch * ratio + shift)
    assert p.sum() == pytest.approx(positive.sum(), rel=0.05)
    top = np.argsort(-ratio)[:2_000]
    assert p[top].mean() == pytest.approx(positive[top].mean(), abs=0.03)


def test_hardness_is_that_of_the_example_and_not_of_its_label():
    world = make_world(0)
    canaries = make_canaries(world.holdout)
    hard = hardness(canaries.signals).reshape(len(world.holdout), -1)  # one snapshot: a row for each label
    np.testing.assert_allclose(hard, np.broadcast_to(hard[:, :1], hard.shape), atol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_errors_on_hard_examples_are_expected_there(seed):
    world = make_world(seed, rate=0.2, noise="on hard ones")
    by_hardness, plain, signals = both(world)
    assert by_hardness.found.slope > 0.5
    true = world.is_error.sum()
    p, before = (fitted.predict(signals, world.given) for fitted in (by_hardness, plain))
    assert abs(p.sum() - true) < min(0.12 * true, abs(before.sum() - true))  # before: 9-30% too few
    top = np.argsort(-p)[:300]
    assert abs(p[top].mean() - world.is_error[top].mean()) < 0.05


@pytest.mark.parametrize("seed", range(3))
def test_noise_that_falls_on_all_alike_has_a_level_line(seed):
    world = make_world(seed, rate=0.3, noise="on any")
    by_hardness, plain, signals = both(world)
    assert abs(by_hardness.found.slope) < 0.15  # 0.05 at most on five seeds
    p, before = (fitted.predict(signals, world.given) for fitted in (by_hardness, plain))
    assert p.sum() == pytest.approx(before.sum(), rel=0.05)


def test_few_errors_and_a_doubted_holdout_have_no_line():
    world = make_world(0, rate=0.0)
    by_hardness, plain, signals = both(world)
    assert by_hardness.line is None
    np.testing.assert_array_equal(by_hardness.predict(signals, world.given), plain.predict(signals, world.given))
    world = make_world(0)
    signals, anchors = rescore(world.holdout, world.seen, world.given, world.holdout.snapshots[0])
    canaries = make_canaries(world.holdout, np.r_[0.5, np.ones(len(world.holdout) - 1)])
    assert calibrate(canaries, signals, world.given, anchors).believed.line is None
