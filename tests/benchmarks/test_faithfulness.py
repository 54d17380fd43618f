"""The faithfulness benchmark on a problem small enough to differentiate by retraining."""

import numpy as np
import pytest
import torch

from benchmarks import exactness
from benchmarks.agreement import ceiling, pearson, spearman
from benchmarks.convex import SoftmaxProblem
from benchmarks.exactness import Truth


def synthetic(count, seed, l2=1e-2):
    """Three classes, six features: labels from a fixed linear rule and noise."""
    rule = torch.randn(6, 3, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(count, 6, generator=generator, dtype=torch.float64)
    noise = torch.randn(count, 3, generator=generator, dtype=torch.float64)
    labels = (features @ rule + noise).argmax(1)
    return SoftmaxProblem(torch.cat([features, features.new_ones(count, 1)], dim=1), labels, 3, l2)


@pytest.fixture(scope="module")
def truth():
    return Truth(synthetic(60, seed=0), synthetic(20, seed=1))


def test_the_hessian_is_that_of_autograd(truth):
    theta = truth.theta[:, 0]
    weights = truth.train.uniform()
    hessian = torch.autograd.functional.hessian(lambda t: truth.train.objective(t[:, None], weights)[0], theta)
    torch.testing.assert_close(truth.operator.to_dense(), hessian)
    torch.testing.assert_close(truth.operator.matmul(torch.eye(len(theta), dtype=torch.float64)), hessian)


def test_exact_influence_is_the_derivative_of_retraining(truth):
    h = 1e-5  # central differences: an error of h² beside one of 1e-12/h from the fit
    n = truth.train.num_examples
    steps = h * torch.eye(n, dtype=torch.float64)
    up, down = (
        truth.test.losses(truth.train.fit(truth.train.uniform() + s, truth.theta.expand(-1, n), tolerance=1e-12))
        for s in (steps, -steps)
    )
    slopes = ((up - down) / (2 * h)).mT  # d loss_v / d w_i, [n, V]
    np.testing.assert_allclose(truth.scores, slopes.numpy(), atol=1e-5 * np.abs(truth.scores).max())


def test_removal_changes_the_loss_as_predicted(truth):
    removed = exactness.remove(truth, 20)
    plain, newton = (exactness.removal_row(truth, removed, newton=each) for each in (False, True))
    assert plain["median_slope"] > 0.8  # the sign is right; sixty points are few, so that a removal is no small step
    assert plain["pearson"] > 0.95
    assert newton["pearson"] > plain["pearson"]
    little = exactness.removal_row(truth, exactness.remove(truth, 20, share=1e-3))
    assert little["lowest"] > 0.99999
    assert little["median_slope"] == pytest.approx(1, abs=0.01)


def test_the_newton_step_uses_the_hessian_that_is_left(truth):
    example = 7
    weights = truth.train.uniform()
    weights[example] = 0.0
    left = truth.train.hessian(truth.theta, weights).to_dense()
    gradient = truth.train.example_gradients(truth.theta)[:, [example]]
    expected = -(truth.gradients.mT @ torch.linalg.solve(left, gradient)).mT
    inverse = truth.inverse.inverse
    found = truth.train.newton_influence(truth.theta, inverse, truth.directions, torch.tensor([example]))
    torch.testing.assert_close(found, expected)


def test_correlations_agree_with_numpy_and_share_ranks():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 30, 4))
    expected = [np.corrcoef(a[:, k], b[:, k])[0, 1] for k in range(4)]
    np.testing.assert_allclose(pearson(a, b), expected)
    np.testing.assert_allclose(spearman(np.exp(a), a), 1.0)
    np.testing.assert_allclose(spearman([0, 1, 1, 2], [0, 1.5, 1.5, 5]), 1.0)
    assert pearson(np.ones(5), np.arange(5)) == 0


def test_the_ceiling_is_one_without_noise_and_low_with_nothing_else():
    rng = np.random.default_rng(0)
    same = rng.normal(size=(50, 20))
    assert ceiling(np.stack([same, same]), spearman) == pytest.approx(1)
    assert ceiling(rng.normal(size=(2, 50, 20)), spearman) < 0.5
    signal, noise = rng.normal(size=(400, 20)), rng.normal(size=(2, 400, 20))  # the mean of two has reliability 2/3
    assert ceiling(signal + noise, spearman) == pytest.approx((2 / 3) ** 0.5, abs=0.03)
