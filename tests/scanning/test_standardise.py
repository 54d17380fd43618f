"""Embeddings as they come: overflows, NaN, constants. One bad row must not cost the others their answer."""

import numpy as np
import pytest
import torch

from sgoif.errors import SgoifError
from sgoif.scanning.frozen import audit_embeddings
from sgoif.scanning.standardise import clamp, standardise


def world(count=600, width=12, classes=3, seed=0):
    """Clusters with a tenth of the labels wrong, and a mask that leaves a tenth of the examples out."""
    rng = np.random.default_rng(seed)
    truth = np.arange(count) % classes
    rows = (rng.normal(size=(classes, width)) * 2)[truth] + rng.normal(size=(count, width))
    wrong = rng.random(count) < 0.1
    given = np.where(wrong, (truth + 1 + rng.integers(0, classes - 1, count)) % classes, truth)
    held = rng.random(count) < 0.1
    return rows.astype(np.float32), given, wrong, held


def audit(rows, given, classes=3):
    return audit_embeddings(rows, given, np.arange(len(given)), num_classes=classes)


def average_precision(run, wrong):
    p, is_wrong = run.table["p_mislabeled"].astype(float), wrong[run.table["id"]]
    hits = is_wrong[np.argsort(-np.nan_to_num(p, nan=-1), kind="stable")]
    return float((np.cumsum(hits) / np.arange(1, len(hits) + 1))[hits].mean())


@pytest.mark.usefixtures("quick_heads")
def test_a_broken_row_has_no_probability_and_says_why_and_costs_the_others_nothing():
    rows, given, wrong, _ = world(900)
    overflowed, far, not_finite = np.arange(4), 50, np.array([100, 200, 300])
    rows[overflowed] = 65504  # the largest number of half precision
    rows[far] *= 60
    rows[not_finite[0], 0], rows[not_finite[1]], rows[not_finite[2], 5] = np.nan, np.inf, -np.inf
    run = audit(rows, given)
    assert average_precision(run, wrong) > 0.95
    p = dict(zip(run.table["id"].tolist(), run.table["p_mislabeled"].astype(float), strict=True))
    broken = {*overflowed.tolist(), *not_finite.tolist()}
    assert {i for i, value in p.items() if np.isnan(value)} == broken  # what is merely far is clamped and judged
    said = zip(run.table["id"].tolist(), run.table["no_p_reason"], strict=True)
    assert {i: reason for i, reason in said if reason is not None} == {
        **dict.fromkeys(overflowed.tolist(), "its embedding lies more than 1,000 standard deviations from all others"),
        **dict.fromkeys(not_finite.tolist(), "its embedding is not finite"),
    }
    called_wrong = [i for i, value in p.items() if value > 0.5]
    assert sum(not wrong[i] for i in called_wrong) <= 3 and len(called_wrong) > 0.6 * wrong[list(p)].sum()
    assert run.info["outlier_ids"] == [*overflowed.tolist(), far] and run.info["outliers"] == 5
    assert run.info["not_finite"] == 3 and run.info["clamped_values"] > 5


def test_what_is_no_table_of_differing_numbers_is_refused_with_what_is_needed():
    rows, given, *_ = world(120)
    for bad, words in (
        (np.ones_like(rows), "all 12 features are the same for every one of"),
        (rows.astype(object), "holds values of type object"),
        (rows[:, :, None], r"has the shape \[120, 12, 1\].*\[120, D\]; average or flatten"),
        (rows[:, 0], r"has the shape \[120\]"),
        (rows[:100], "has 100 rows, expected .* one row per example"),
        (rows.astype(np.complex64), "complex64"),
    ):
        with pytest.raises(SgoifError, match=words):
            audit(bad, given)


def test_constant_features_become_zero_and_repeated_ones_stay_the_same():
    rows, _, _, held = world(300)
    odd = np.concatenate([rows, rows[:, :3], np.full((300, 2), 7.0), np.zeros((300, 1))], 1)
    inputs = standardise(odd, ~held).inputs
    assert (inputs[:, -3:] == 0).all() and torch.equal(inputs[:, :3], inputs[:, 12:15])


@pytest.mark.parametrize(("scale", "offset"), [(1.0, 0.0), (1e-20, 0.0), (1e20, 0.0), (1.0, 1e6)])
def test_any_scale_becomes_the_same(scale, offset):
    rows, *_ = world(300)
    plain = standardise(rows).inputs
    found = standardise(rows.astype(np.float64) * scale + offset).inputs
    torch.testing.assert_close(found, plain, rtol=0, atol=1e-5)  # float32 of values up to 10
    torch.testing.assert_close(plain.mean(0), torch.zeros(12), rtol=0, atol=1e-5)
    torch.testing.assert_close(plain.std(0, unbiased=False), torch.ones(12), rtol=0, atol=1e-4)


def test_a_feature_that_few_examples_have_stays_one():
    rows, *_ = world(1000)
    rows[:, 0] = 0.001 * rows[:, 0]
    rows[:4, 0] = 1.0
    found = standardise(rows)
    assert (found.inputs[:4, 0] > 5).all() and found.inputs.abs().max() <= 10
    assert not found.is_outlier.any()


def test_ordinary_rows_are_not_clamped():
    rows, *_ = world(300)
    assert standardise(rows).num_clamped == 0
    assert np.array_equal(clamp(rows), rows)


def test_a_row_with_more_than_a_tenth_of_its_features_far_out_is_an_outlier():
    rows, *_ = world(300, width=20)
    rows[5, :3] += 200  # far, not absurd
    rows[6, :2] += 200
    assert np.flatnonzero(standardise(rows).is_outlier).tolist() == [5]
