"""The head as softmax regression: autograd in float64 is the truth, and slices change nothing."""

import pytest
import torch
import torch.nn.functional as F

from sgoif.unlearning import softmax
from sgoif.unlearning.softmax import HeadRows, SoftmaxHessian


@pytest.fixture
def problem():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(30, 5, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 4, (30,), generator=generator)
    return HeadRows(features, labels), torch.randn(4, 5, generator=generator, dtype=torch.float64)


@pytest.fixture(params=[softmax.SLICE_BYTES, 300], ids=["whole", "in slices"])
def slices(request, monkeypatch):
    monkeypatch.setattr(softmax, "SLICE_BYTES", request.param)


def mean_loss(theta, rows):
    return F.cross_entropy(rows.features @ theta.mT, rows.labels)


def test_losses_and_gradients_are_those_of_autograd(problem, slices):
    rows, theta = problem
    torch.testing.assert_close(rows.losses(theta).mean(), mean_loss(theta, rows))
    torch.testing.assert_close(rows.gradient(theta), torch.func.grad(mean_loss)(theta, rows))
    direction = torch.ones_like(theta).cumsum(0)
    each = [HeadRows(rows.features[i : i + 1], rows.labels[i : i + 1]).gradient(theta) for i in range(len(rows))]
    expected = torch.stack([(g * direction).sum() for g in each])
    torch.testing.assert_close(rows.dots(theta, direction), expected)


def test_columns_are_multiplied_by_their_own_hessian(problem, slices):
    rows, theta = problem
    weights = torch.zeros(30, 2, dtype=torch.float64)
    weights[:, 0], weights[:10, 1] = 1 / 30, 1 / 10
    columns = torch.randn(20, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = SoftmaxHessian(theta, rows, weights) @ columns
    some = HeadRows(rows.features[:10], rows.labels[:10])
    for k, part in enumerate((rows, some)):
        dense = torch.func.hessian(mean_loss)(theta, part).reshape(20, 20)
        torch.testing.assert_close(found[:, k], dense @ columns[:, k])
