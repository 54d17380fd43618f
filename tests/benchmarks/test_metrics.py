from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from benchmarks import metrics

# Few values, so that ties are common; at most seven examples, so that all orders can be tried.
rankings = st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=2, max_size=7).filter(
    lambda rows: any(error for _, error in rows)
)


def over_all_orders(rows, measure):
    """Average a measure of a strictly ordered list over all orders that agree with the scores."""
    values = []
    for order in itertools.permutations(rows):
        if all(a[0] >= b[0] for a, b in itertools.pairwise(order)):
            values.append(measure([error for _, error in order]))
    return np.mean(values)


def plain_average_precision(errors):
    return sum(sum(errors[: k + 1]) / (k + 1) for k in range(len(errors)) if errors[k]) / sum(errors)


@given(rows=rankings)
def test_average_precision_is_the_mean_over_random_order(rows):
    scores, errors = zip(*rows)
    expected = over_all_orders(rows, plain_average_precision)
    assert metrics.average_precision(scores, errors) == pytest.approx(expected, rel=1e-12)


@given(rows=rankings, q=st.sampled_from([0.01, 0.2, 0.5, 0.77, 1.0]))
def test_precision_and_recall_are_means_over_random_order(rows, q):
    scores, errors = zip(*rows)
    count = math.ceil(q * len(rows))
    hits = over_all_orders(rows, lambda order: sum(order[:count]))
    assert metrics.precision_at(scores, errors, q) == pytest.approx(hits / count)
    assert metrics.recall_at(scores, errors, q) == pytest.approx(hits / sum(errors))


@given(rows=rankings)
def test_auroc_counts_pairs(rows):
    assume(not all(error for _, error in rows))
    scores, errors = zip(*rows)
    pairs = [(a > b) + 0.5 * (a == b) for a, e in rows for b, f in rows if e and not f]
    assert metrics.auroc(scores, errors) == pytest.approx(np.mean(pairs))


@given(seed=st.integers(0, 2**31))
def test_nothing_depends_on_the_order_of_the_examples(seed):
    rng = np.random.default_rng(seed)
    scores, errors = rng.integers(0, 5, 300), rng.random(300) < 0.3
    assume(errors.any())
    order = rng.permutation(300)
    first, second = metrics.detection_report(scores, errors), metrics.detection_report(scores[order], errors[order])
    assert first == pytest.approx(second, rel=1e-12)


def test_top_count_is_a_ceiling_without_rounding_noise():
    assert metrics.top_count(0.01, 20_000) == 200
    assert metrics.top_count(0.01, 20_001) == 201
    assert metrics.top_count(0.07, 100) == 7  # 0.07 * 100 is 7.000000000000001
    with pytest.raises(ValueError, match="share in"):
        metrics.top_count(1.5, 100)


def test_standard_error_of_a_precision():
    assert 100 * metrics.precision_standard_error(0.91, 500) == pytest.approx(1.28, abs=0.01)
    assert metrics.precision_standard_error(1.0, 500) == 0.0


def test_report_of_constant_scores_is_chance():
    errors = np.random.default_rng(0).random(2_000) < 0.2
    report = metrics.detection_report(np.zeros(2_000), errors)
    assert report["auroc"] == pytest.approx(50)
    assert report["p@1%"] == pytest.approx(report["rate"])
    assert report["ap"] == pytest.approx(report["ap_chance"])
    assert report["r@1%_ceiling"] == pytest.approx(100 * 20 / errors.sum())
    # a random order does a little better than the rate, by about (1 - rate) ln(n) / n
    assert 0 < report["ap_chance"] - report["rate"] < 0.5


@pytest.mark.parametrize(
    ("scores", "errors", "message"),
    [
        ([0.1, 0.2], [False, False], "no error to be found"),
        ([0.1, math.nan], [True, False], "1 of 2 scores are NaN"),
        ([0.1], [True, False], "one length"),
    ],
)
def test_bad_input_is_refused(scores, errors, message):
    with pytest.raises(ValueError, match=message):
        metrics.average_precision(scores, errors)
