"""Calibration of one side of the tags on planted errors."""

import numpy as np
import pytest

from sgoif.evidence.sides import calibrate_side, side_canaries


def world(rng, examples, tags, share):
    """Two signals per pair that are normal once bent: sound ones around 0, wrong ones around 3."""
    tag = rng.integers(0, tags, examples)
    wrong = rng.random(examples) < share
    bent = rng.normal(size=(examples, 2)) + 3.0 * wrong[:, None] + 0.3 * tag[:, None] / tags
    return tag, wrong, np.sign(bent) * np.expm1(np.abs(bent))


def canaries(rng, examples, tags, rare=None):
    """Of a rare tag two are left."""
    tag, flip, signals = world(rng, examples, tags, 0.5)
    row, keep = np.arange(examples) // 4, np.ones(examples, bool)
    keep[np.flatnonzero(tag == rare)[2:]] = False
    belief = np.ones(keep.sum())
    return side_canaries(row[keep], row[keep] % 2, tag[keep], flip[keep], belief, signals[keep], tags)


@pytest.mark.parametrize("share", [0.01, 0.05, 0.3])
def test_expected_errors_are_those_that_were_planted(share):
    rng = np.random.default_rng(0)
    held = canaries(rng, 2_000, 10)
    tag, wrong, signals = world(rng, 20_000, 10, share)
    fitted = calibrate_side(held, signals, tag)
    p = fitted.predict(signals, tag)
    assert abs(p.sum() / wrong.sum() - 1) < 0.15  # the canaries' own share would promise half of all pairs
    sure = np.argsort(-p)[: wrong.sum() // 2]
    assert abs(p[sure].mean() - wrong[sure].mean()) < 0.05


def test_clean_tags_promise_next_to_nothing():
    rng = np.random.default_rng(1)
    held = canaries(rng, 2_000, 5)
    tag, _, signals = world(rng, 20_000, 5, 0.0)
    assert calibrate_side(held, signals, tag).predict(signals, tag).mean() < 0.002


def test_a_tag_with_few_canaries_is_judged_like_the_others():
    rng = np.random.default_rng(2)
    held = canaries(rng, 2_000, 4, rare=3)
    tag, wrong, signals = world(rng, 20_000, 4, 0.05)
    p = calibrate_side(held, signals, tag).predict(signals, tag)
    found = [p[tag == t].sum() / wrong[tag == t].sum() for t in range(4)]
    assert 0.7 < found[3] < 1.4, found
