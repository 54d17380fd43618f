"""Health of the anchors, against dense references."""

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from sgoif.training.anchor_health import coverage, curvature_gap, gram_health


@settings(max_examples=20)
@given(p=st.integers(2, 12), k=st.integers(1, 5), b=st.integers(1, 6), seed=st.integers(0, 2**31))
def test_coverage_is_the_share_of_a_projection(p, k, b, seed):
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(p, min(k, p), generator=generator, dtype=torch.float64)
    gradients = torch.randn(b, p, generator=generator, dtype=torch.float64)
    basis, _ = torch.linalg.qr(directions)
    expected = ((gradients @ basis) ** 2).sum(1) / (gradients**2).sum(1)
    found = coverage(gradients @ directions, (gradients**2).sum(1), directions)
    torch.testing.assert_close(found, expected.mean(), rtol=1e-5, atol=1e-5)


def test_dependent_directions_are_seen():
    one = torch.tensor([[1.0], [2.0], [0.5]])
    smallest, cosine = gram_health(torch.cat([one, 3 * one], 1))
    assert abs(smallest) < 1e-6
    torch.testing.assert_close(cosine, torch.tensor(1.0))
    smallest, cosine = gram_health(torch.eye(3))
    torch.testing.assert_close(smallest, torch.tensor(1.0))
    assert cosine == 0


def test_the_gap_is_that_of_the_dense_gauss_newton_matrix():
    torch.manual_seed(0)
    features, weight = torch.randn(7, 3).double(), torch.randn(4, 3).double()
    directions, products = torch.randn(2, 4, 3).double(), torch.randn(2, 4, 3).double()
    sizes = torch.rand(2).double() + 1

    def mean_loss(flat):  # linear in the weights, so the Hessian is the Gauss-Newton matrix
        return F.cross_entropy(features @ flat.view(4, 3).mT, torch.zeros(7, dtype=torch.long))

    hessian = torch.autograd.functional.hessian(mean_loss, weight.flatten())
    expected = ((directions.flatten(1) @ hessian) - products.flatten(1)).norm(dim=1) / sizes
    found = curvature_gap(features, features @ weight.mT, directions, products, sizes)
    torch.testing.assert_close(found, expected)
