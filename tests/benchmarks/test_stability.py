"""Rankings by epoch: what is found, and what stays."""

import numpy as np
import pytest
from scipy.stats import kendalltau

from benchmarks import stability


def test_kendall_agrees_with_scipy():
    first, second = np.random.default_rng(0).integers(0, 9, (2, 60)).astype(float)
    assert stability.kendall(first, second) == pytest.approx(kendalltau(first, second).statistic)


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
