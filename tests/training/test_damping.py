"""K-FAC is damped more where the features under the head do not learn, and nowhere else."""

import pytest
import torch
from torch import nn

import sgoif
from sgoif.settings import FROZEN_DAMPING

HOLDOUT = (torch.randn(20, 6), torch.arange(20) % 3)


def two_layers(*learning):
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name.split(".")[0] in learning
    return model


def damping(model, **settings):
    return sgoif.watch(
        model, anchors=HOLDOUT, train_size=10, method=sgoif.Method(**settings)
    ).engine.curvature.relative_damping


@pytest.mark.parametrize("model", [two_layers("2"), nn.Sequential(nn.Linear(6, 3)), nn.Linear(6, 3)])
def test_a_head_that_learns_alone_is_damped_more(model):
    assert damping(model) == FROZEN_DAMPING


def test_models_that_learn_below_the_head_keep_the_backends_own_damping():
    assert damping(two_layers("0", "2")) == 0.1
    tuned = nn.Sequential(two_layers(), nn.LayerNorm(3), nn.Linear(3, 3))  # a frozen backbone but for its norm
    assert damping(tuned) == 0.1


def test_what_is_given_is_taken():
    assert damping(two_layers("2"), curvature_settings={"relative_damping": 2.0}) == 2.0
    assert damping(two_layers("2"), curvature_settings={}) == 0.1
    assert damping(two_layers("2"), curvature="diagonal") == 0.1


def test_an_audit_follows_the_same_rule():
    model, examples = two_layers("2"), (torch.randn(30, 6), torch.arange(30) % 3)
    ruled, asked, usual = (
        sgoif.audit(model, examples, anchors=HOLDOUT, method=sgoif.Method(**settings)).table["harm"]
        for settings in (
            {},
            {"curvature_settings": {"relative_damping": FROZEN_DAMPING}},
            {"curvature_settings": {"relative_damping": 0.1}},
        )
    )
    assert (ruled == asked).all()
    assert not (ruled == usual).all()
