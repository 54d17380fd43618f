"""Influence of examples on queries: equal to dense solves with written-out gradients, and no trace left."""

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, jacrev
from torch.nn.attention import SDPBackend, sdpa_kernel

import sgoif
from sgoif.errors import SgoifError
from sgoif.explain import attribution
from sgoif.gradients import quiet_eval, select_layers
from sgoif.testing.references import reference_gradients
from tests.cases import ResidualNet, TransformerNet
from tests.training.loops import GroupNormNet, data, train


@pytest.fixture(scope="module")
def finished():
    torch.manual_seed(0)
    train_set, queries = data()
    return train(GroupNormNet().double(), train_set), train_set, queries


def dense_gradients(model, examples, names=None):
    """``[B, P]`` by definition, layer after layer."""
    inputs, labels = examples
    with quiet_eval(model):
        parts = [
            reference_gradients(layer, lambda: F.cross_entropy(model(inputs), labels, reduction="sum")).flatten(1)
            for layer in select_layers(model, names)
        ]
    return torch.cat(parts, 1).detach()


@pytest.mark.parametrize("make", [GroupNormNet, ResidualNet, TransformerNet])
def test_plain_influence_is_the_product_of_gradients(make):
    torch.manual_seed(0)
    train_set, queries = data()
    model = train(make().double(), train_set, epochs=1)
    expected = -dense_gradients(model, train_set) @ dense_gradients(model, queries).mT
    found = sgoif.attribute(model, train_set, queries, layers="all", curvature="identity", batch_size=7, as_matrix=True)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-8, atol=1e-12)


def test_kfac_at_the_head_is_the_dense_kronecker_solve(finished):
    model, (inputs, labels), queries = finished
    seen = []
    handle = model.fc.register_forward_hook(lambda _m, args, _out: seen.append(args[0].detach()))
    with quiet_eval(model):
        logits = model(inputs).detach()
    handle.remove()
    a = torch.cat([seen[0], torch.ones(len(labels), 1, dtype=torch.float64)], 1)
    b = logits.softmax(1) - F.one_hot(labels, 4)
    factors = [side.mT @ side / len(labels) for side in (b, a)]
    damped = [f + 0.1 * f.diagonal().mean() * torch.eye(len(f), dtype=f.dtype) for f in factors]
    g, h = (dense_gradients(model, examples, ["fc"]) for examples in ((inputs, labels), queries))
    expected = -g @ torch.linalg.solve(torch.kron(*damped), h.mT)
    found = sgoif.attribute(model, (inputs, labels), queries, batch_size=10, as_matrix=True)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize(
    "make", [GroupNormNet, TransformerNet, partial(TransformerNet, attention="linear")], ids=["conv", "mha", "sdpa"]
)
def test_gauss_newton_is_the_dense_solve_across_layers(make):
    torch.manual_seed(0)
    (inputs, labels), queries = data(held=5)
    model = train(make().double(), (inputs, labels), epochs=1)
    params = {name: value.detach() for name, value in model.named_parameters()}
    with sdpa_kernel(SDPBackend.MATH):
        jacobians = jacrev(lambda at: functional_call(model.eval(), at, (inputs,)))(params)  # [n, C, ...] each
    layers = select_layers(model)
    jacobian = torch.cat([layer.block(jacobians).flatten(2) for layer in layers], 2)  # [n, C, P]
    p = model(inputs).detach().softmax(1)
    hessians = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    matrix = torch.einsum("ncp,ncd,ndq->pq", jacobian, hessians, jacobian) / len(labels)
    g, h = (dense_gradients(model, examples) for examples in ((inputs, labels), queries))
    expected = -g @ torch.linalg.solve(matrix + 0.3 * torch.eye(len(matrix), dtype=matrix.dtype), h.mT)
    settings = {"damping": 0.3, "products": 100, "tolerance": 1e-8}
    ask = {"layers": "all", "curvature": "gauss-newton", "curvature_settings": settings, "batch_size": 30}
    found = sgoif.attribute(model, (inputs, labels), queries, **ask, as_matrix=True)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-7)


def test_products_go_through_batch_norm_and_in_place_activations():
    torch.manual_seed(0)
    train_set, queries = data()
    model = train(ResidualNet().double(), train_set, epochs=1).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    rng = torch.get_rng_state()
    ours = sgoif.attribute(model, train_set, queries, layers="all", curvature="gauss-newton", as_matrix=True)
    assert np.isfinite(ours).all()
    assert torch.equal(rng, torch.get_rng_state())
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert dict(model.named_parameters())["fc.weight"] is model.fc.weight


@pytest.mark.parametrize("settings", [{}, {"eigenvalue_corrected": True}])
def test_blocks_and_batches_change_nothing(finished, monkeypatch, settings):
    model, train_set, queries = finished
    ask = {"layers": "all", "curvature_settings": settings}
    whole = sgoif.attribute(model, train_set, queries, **ask, as_matrix=True)
    monkeypatch.setattr(attribution, "BLOCK_BYTES", 5 * 8 * sum(p.numel() for p in model.parameters()))
    np.testing.assert_allclose(
        sgoif.attribute(model, train_set, queries, batch_size=9, **ask, as_matrix=True), whole, rtol=1e-7
    )


def test_removing_what_harms_lowers_the_loss_of_the_query():
    """The sign, by retraining: a linear model at its minimum, example by example."""
    torch.manual_seed(0)
    inputs, labels = torch.randn(40, 3, dtype=torch.float64), torch.randint(0, 2, (40,))
    queries = (torch.randn(5, 3, dtype=torch.float64), torch.randint(0, 2, (5,)))
    model = _fitted(inputs, labels)
    settings = {"damping": 1e-2, "tolerance": 1e-10}
    found = sgoif.attribute(
        model, (inputs, labels), queries, curvature="gauss-newton", curvature_settings=settings, as_matrix=True
    )
    full = F.cross_entropy(model(queries[0]), queries[1], reduction="none").detach()
    keep = torch.ones(40, dtype=torch.float64)
    for i in (0, 7, 21):
        weights = keep.clone()
        weights[i] = 0.99
        less = _fitted(inputs, labels, weights)
        change = F.cross_entropy(less(queries[0]), queries[1], reduction="none").detach() - full
        np.testing.assert_allclose(change.numpy(), -0.01 * found[i] / 40, rtol=0.02, atol=1e-7)


def _fitted(inputs, labels, weights=None):
    model = nn.Sequential(nn.Linear(3, 2).double())
    weights = torch.ones(len(labels), dtype=torch.float64) if weights is None else weights
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=500, tolerance_grad=1e-12, tolerance_change=0)

    def closure():
        optimizer.zero_grad()
        losses = F.cross_entropy(model(inputs), labels, reduction="none")
        loss = (weights * losses).sum() / len(labels) + 5e-3 * sum(p.square().sum() for p in model.parameters())
        loss.backward()
        return loss

    optimizer.step(closure)
    return model


def test_low_precision_is_refused_where_products_are_asked(finished):
    _, train_set, queries = finished
    low = [(x.bfloat16(), y) for x, y in (train_set, queries)]
    with pytest.raises(SgoifError, match="float32"):
        sgoif.attribute(GroupNormNet().bfloat16(), *low, curvature="gauss-newton", as_matrix=True)
