"""Gauss-Newton products against autograd's dense matrices, and K-FAC and the GGN against curvlinops."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.testing import assert_close

from sgoif.curvature import create, ggn_product
from sgoif.errors import CurvatureError
from sgoif.records import BlockShape, GradientRows


def network(*widths, activation=nn.Tanh, bias=True):
    torch.manual_seed(0)
    layers = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b, bias=bias), activation()]
    return nn.Sequential(*layers[:-1]).double()


def problem(model, examples=5, classes=3):
    g = torch.Generator().manual_seed(1)
    x = torch.randn(examples, model[0].in_features, generator=g, dtype=torch.float64)
    y = torch.randint(classes, (examples,), generator=g)
    params = {name: p.detach().clone() for name, p in model.named_parameters()}
    return x, y, params


def flat(vector, params):
    return torch.cat([vector[name].flatten() for name in params])


def unflat(column, params):
    parts = column.split([p.numel() for p in params.values()])
    return {name: part.reshape(p.shape) for (name, p), part in zip(params.items(), parts, strict=True)}


def test_ggn_product_equals_the_dense_gauss_newton_matrix():
    model = network(4, 5, 3)
    x, y, params = problem(model)

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


# Against another library, where the cases are exact.


def rows_of(model, x, y):
    """Inputs and gradients of the sum of losses, for every Linear layer, by hooks of our own."""
    seen, linears = {}, {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    handles = [m.register_forward_hook(lambda m, i, o, n=n: seen.__setitem__(n, (i[0], o))) for n, m in linears.items()]
    loss = nn.functional.cross_entropy(model(x), y, reduction="sum")
    grads = torch.autograd.grad(loss, [seen[n][1] for n in linears])
    for handle in handles:
        handle.remove()
    rows, shapes = [], {}
    for (name, module), b in zip(linears.items(), grads, strict=True):
        a = seen[name][0].detach()
        a = torch.cat([a, torch.ones_like(a[:, :1])], dim=1) if module.bias is not None else a
        rows.append(GradientRows(name, a[:, None, :, None], b[:, None, :, None]))
        shapes[name] = BlockShape(1, module.out_features, a.shape[1], module.bias is not None)
    return rows, shapes


def dense_of(linear_operator, size):
    return linear_operator @ torch.eye(size, dtype=torch.float64)


@pytest.mark.parametrize(("widths", "examples"), [((4, 3), 1), ((4, 3), 5), ((4, 5, 3), 6), ((3, 4, 4, 3), 4)])
def test_kfac_factors_agree_with_curvlinops_on_linear_networks(widths, examples):
    curvlinops = pytest.importorskip("curvlinops")
    model = network(*widths, activation=nn.Identity, bias=False)
    x, y, params = problem(model, examples)
    rows, shapes = rows_of(model, x, y)
    ours = create("kfac", shapes, dtype=torch.float64)
    ours.observe(rows)
    theirs = curvlinops.KFACLinearOperator(
        model,
        nn.CrossEntropyLoss(),
        list(model.parameters()),
        [(x, y)],
        fisher_type=curvlinops.FisherType.EMPIRICAL,
        check_deterministic=False,
    )
    size = sum(p.numel() for p in params.values())
    assert_close(ours.operator(undamped=True).to_dense(), dense_of(theirs, size))


@pytest.mark.parametrize("examples", [1, 5])
def test_one_linear_layer_with_a_bias_agrees_with_curvlinops_and_the_empirical_fisher(examples):
    curvlinops = pytest.importorskip("curvlinops")
    model = network(4, 3)
    x, y, _ = problem(model, examples)
    rows, shapes = rows_of(model, x, y)
    kfac, fisher = (create(name, shapes, dtype=torch.float64) for name in ("kfac", "fisher"))
    kfac.observe(rows)
    fisher.observe(rows)
    data = (model, nn.CrossEntropyLoss(), list(model.parameters()), [(x, y)])
    empirical = dense_of(curvlinops.EFLinearOperator(*data, check_deterministic=False), 15)
    # They list weights, then biases; we keep the bias as last column of each output's row.
    order = torch.cat([torch.arange(12).reshape(3, 4), torch.arange(12, 15)[:, None]], dim=1).flatten()
    assert_close(fisher.operator(undamped=True).to_dense(), empirical[order][:, order])
    factors = curvlinops.KFACLinearOperator(
        *data,
        fisher_type=curvlinops.FisherType.EMPIRICAL,
        separate_weight_and_bias=False,
        check_deterministic=False,
    )
    ours = kfac.operator(undamped=True).to_dense()
    assert_close(ours, dense_of(factors, 15)[order][:, order])
    if examples == 1:  # then K-FAC is no approximation
        assert_close(ours, fisher.operator(undamped=True).to_dense())
