"""Gauss-Newton products against autograd's dense matrices, and K-FAC and the GGN against curvlinops."""

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.testing import assert_close

from sgoif.curvature import create, ggn_product
from sgoif.errors import CurvatureError
from sgoif.records import BlockShape, GradientRows


def problem(examples=5):
    g = torch.Generator().manual_seed(1)
    return torch.randn(examples, 4, generator=g, dtype=torch.float64), torch.randint(3, (examples,), generator=g)


def flat(vector, params):
    return torch.cat([vector[name].flatten() for name in params])


def unflat(column, params):
    parts = column.split([p.numel() for p in params.values()])
    return {name: part.reshape(p.shape) for (name, p), part in zip(params.items(), parts, strict=True)}


def test_ggn_product_equals_the_dense_gauss_newton_matrix():
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    x, y = problem()
    params = {name: p.detach().clone() for name, p in model.named_parameters()}

    def outputs(p):
        return functional_call(model, p, (x,))

    def loss(logits):
        return nn.functional.cross_entropy(logits, y)

    start = flat(params, params)
    jacobian = torch.autograd.functional.jacobian(lambda v: outputs(unflat(v, params)).flatten(), start)
    z = outputs(params)
    inner = torch.autograd.functional.hessian(lambda o: loss(o.reshape(z.shape)), z.flatten())
    v = torch.randn_like(start)
    product = ggn_product(outputs, loss, params, unflat(v, params))
    assert_close(flat(product, params), jacobian.mT @ (inner @ (jacobian @ v)))
    with pytest.raises(CurvatureError, match=r"0\.weight"):
        ggn_product(outputs, loss, params, {**params, "0.weight": torch.ones(1)})


@pytest.mark.parametrize("examples", [1, 5])
def test_one_linear_layer_with_a_bias_agrees_with_curvlinops_and_the_empirical_fisher(examples):
    curvlinops = pytest.importorskip("curvlinops")
    model, (x, y) = nn.Linear(4, 3).double(), problem(examples)
    inputs = torch.cat([x, torch.ones_like(x[:, :1])], dim=1)
    gradients = model(x).detach().softmax(1) - nn.functional.one_hot(y, 3)
    rows = [GradientRows("fc", inputs[:, None, :, None], gradients[:, None, :, None])]
    shapes = {"fc": BlockShape(1, 3, 5, True)}
    kfac, fisher = (create(name, shapes, dtype=torch.float64) for name in ("kfac", "fisher"))
    kfac.observe(rows)
    fisher.observe(rows)
    data = (model, nn.CrossEntropyLoss(), list(model.parameters()), [(x, y)])
    empirical = curvlinops.EFLinearOperator(*data, check_deterministic=False)
    factors = curvlinops.KFACLinearOperator(
        *data,
        fisher_type=curvlinops.FisherType.EMPIRICAL,
        separate_weight_and_bias=False,
        check_deterministic=False,
    )
    # They list weights, then biases; we keep the bias as last column of each output's row.
    order = torch.cat([torch.arange(12).reshape(3, 4), torch.arange(12, 15)[:, None]], dim=1).flatten()
    for ours, theirs in ((fisher, empirical), (kfac, factors)):
        dense = theirs @ torch.eye(15, dtype=torch.float64)
        assert_close(ours.operator(undamped=True).to_dense(), dense[order][:, order])
    if examples == 1:  # then K-FAC is no approximation
        assert_close(kfac.operator(undamped=True).to_dense(), fisher.operator(undamped=True).to_dense())
