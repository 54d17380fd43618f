"""The benchmark of forgetting, the whole way on a small problem: what it holds against retraining is the truth."""

import numpy as np
import pytest
import torch

from benchmarks import data, unlearning, unlearning_network
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


@pytest.mark.data
def test_requests_are_what_their_kinds_say():
    world = unlearning.make_world(unlearning.Settings(examples=400, tested=20, seed=0))
    assert world.is_wrong.sum() == 8 and len(world.test.labels) == 20
    true = data.mnist("train", 20_000).labels
    drawn = np.sort(np.random.default_rng(0).choice(20_000, 400, replace=False))
    np.testing.assert_array_equal(world.train.labels.numpy() != true[drawn], world.is_wrong)
    asked = list(unlearning.requests(world, 0))
    counts = {kind: sum(request.kind == kind for request in asked) for kind in unlearning.KINDS}
    assert counts == unlearning.KINDS
    for request in asked:
        assert len(set(request.rows)) == len(request.rows)
        labels = set(world.train.labels[request.rows].tolist())
        assert request.kind != "half of a class" or len(labels) == 1
        assert request.kind != "wrong labels" or world.is_wrong[request.rows].all()


def test_the_ceiling_is_what_the_mean_of_noisy_retrainings_allows():
    rng = np.random.default_rng(0)
    signal = rng.normal(size=(400, 30))
    noisy = signal + rng.normal(size=(3, 400, 30))
    reached = unlearning_network.judge(signal, noisy)["pearson"]
    assert abs(ceiling(noisy) - reached) < 0.02
    assert ceiling(np.repeat(signal[None], 2, 0)) == pytest.approx(1)
