"""The audit of a finished model: exact scores, no trace."""

import numpy as np
import torch
import torch.nn.functional as F

import sgoif
from tests.cases import ResidualNet
from tests.training.loops import GroupNormNet, data, train


def test_an_audit_scores_every_example_once_and_leaves_no_trace():
    torch.manual_seed(0)
    train_set, holdout = data()
    model = train(ResidualNet().double(), train_set)
    model.train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    rng = torch.get_rng_state()
    run = sgoif.audit(model, train_set, anchors=holdout, batch_size=10)
    assert torch.equal(rng, torch.get_rng_state())
    assert model.training
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert (run.table["n_visits"] == 1).all()
    assert len(run.table["id"]) == 48


def test_identity_scores_are_plain_gradient_products():
    torch.manual_seed(0)
    train_set, holdout = data()
    model = train(GroupNormNet().double(), train_set).eval()

    def gradient(x, y):
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        return torch.cat([model.fc.weight.grad, model.fc.bias.grad[:, None]], 1).clone()

    anchors = [gradient(holdout[0][holdout[1] == c], holdout[1][holdout[1] == c]) for c in range(4)]
    run = sgoif.audit(model, train_set, anchors=holdout, batch_size=7)
    table = run.table
    for i in (0, 11, 47):
        own = gradient(train_set[0][i : i + 1], train_set[1][i : i + 1])
        influence = np.array([-(a * own).sum().item() for a in anchors])
        row = np.flatnonzero(table["id"] == i)[0]
        np.testing.assert_allclose(table["harm_identity"][row], influence.mean(), rtol=1e-8)
        np.testing.assert_allclose(table["own_identity"][row], influence[train_set[1][i]], rtol=1e-8)
