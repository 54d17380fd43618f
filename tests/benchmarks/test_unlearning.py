"""The benchmark of forgetting, the whole way on a small problem: what it holds against retraining is the truth."""

import numpy as np
import pytest
import torch

from benchmarks import unlearning, unlearning_network
from benchmarks.agreement import ceiling, pearson
from benchmarks.convex import SoftmaxProblem
from benchmarks.exactness import Truth


def problem(count, seed, num_classes=10):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % num_classes
    features = torch.randn(count, 7, generator=generator, dtype=torch.float64)
    features[torch.arange(count), labels % 6] += 1
    features[:, -1] = 1
    return SoftmaxProblem(features, labels, num_classes, 1e-2)


@pytest.fixture(scope="module")
def truth():
    return Truth(problem(120, 0), problem(40, 1))


def test_the_plan_is_nearer_to_retraining_than_sums_are(truth):
    asked = unlearning.Asked("half of a class", np.flatnonzero(truth.train.labels.numpy() == 3)[::2])
    target = unlearning.retrain(truth, [asked])
    left = np.setdiff1d(np.arange(120), asked.rows)
    fresh = SoftmaxProblem(truth.train.features[left], truth.train.labels[left], 10, 1e-2).fit(tolerance=1e-12)
    torch.testing.assert_close(target, fresh, rtol=1e-6, atol=1e-8)
    row = unlearning.judge(truth, asked, target)
    methods = row["methods"]
    assert methods["plan"]["off"] < methods["influence"]["off"] and row["bound_over_distance"] >= 1
    assert methods["plan"]["pearson"] > methods["influence"]["pearson"] > methods["gradients"]["pearson"]
    assert pearson(row["anchors"], row["true_anchors"])[0] > 0.98  # six of twelve are too many for one step to be exact


def test_the_ceiling_is_what_the_mean_of_noisy_retrainings_allows():
    rng = np.random.default_rng(0)
    signal = rng.normal(size=(400, 30))
    noisy = signal + rng.normal(size=(3, 400, 30))
    reached = unlearning_network.judge(signal, noisy)["pearson"]
    assert abs(ceiling(noisy) - reached) < 0.02
    assert ceiling(np.repeat(signal[None], 2, 0)) == pytest.approx(1)
