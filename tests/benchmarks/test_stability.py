"""Rankings by epoch: what is found, and what stays."""

import numpy as np
import pytest

from benchmarks import stability


def test_kendall_agrees_with_scipy():
    scipy_stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 9, (2, 60)).astype(float)
    assert stability.kendall(first, second) == pytest.approx(scipy_stats.kendalltau(first, second).statistic)


def test_a_ranking_that_stays_persists_wholly():
    scores = np.arange(300.0)
    assert stability.persistence([scores, scores]) == pytest.approx({"spearman": 1, "jaccard@1%": 1, "tau@1%": 1})
    turned = stability.persistence([scores, -scores])
    assert turned["spearman"] == pytest.approx(-1)
    assert turned["jaccard@1%"] == 0


def test_accumulated_scores_know_the_past_and_instant_ones_do_not():
    epochs = np.repeat([0, 1], 100)
    ids = np.tile(np.arange(100), 2)
    wrong = np.arange(100) < 10
    values = np.where(np.tile(wrong, 2) & (epochs == 0), 1.0, 0.0)  # the errors show in the first epoch only

    def score(seen):
        return np.bincount(ids, weights=values * seen, minlength=100)

    found = stability.by_epoch(epochs, score, wrong)
    assert found["accumulated ap"] == [100, 100]
    assert found["instant ap"][0] == 100
    assert found["instant ap"][1] < 20
