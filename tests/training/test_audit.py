"""The audit of a finished model: exact scores. That it leaves no trace is in ``tests/test_neutrality.py``."""

import numpy as np
import torch
import torch.nn.functional as F

import sgoif
from tests.training.loops import data, fresh, train


def test_every_example_is_scored_once_by_plain_gradient_products():
    train_set, holdout = data()
    model = train(fresh(), train_set)
    run = sgoif.audit(model, train_set, anchors=holdout, batch_size=7)
    table = run.table
    assert sorted(table["id"].tolist()) == list(range(48)) and (table["n_visits"] == 1).all()

    def gradient(x, y):
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        return torch.cat([model.fc.weight.grad, model.fc.bias.grad[:, None]], 1).clone()

    anchors = [gradient(holdout[0][holdout[1] == c], holdout[1][holdout[1] == c]) for c in range(4)]
    for i in (0, 11, 47):
        own = gradient(train_set[0][i : i + 1], train_set[1][i : i + 1])
        influence = np.array([-(a * own).sum().item() for a in anchors])
        row = np.flatnonzero(table["id"] == i)[0]
        np.testing.assert_allclose(table["harm_identity"][row], influence.mean(), rtol=1e-8)
        others = np.delete(influence, train_set[1][i])
        np.testing.assert_allclose(table["worst_identity"][row], others.max(), rtol=1e-8)
