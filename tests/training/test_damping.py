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


@pytest.mark.parametrize(
    ("model", "settings", "expected"),
    [
        (two_layers("2"), {}, FROZEN_DAMPING),
        (nn.Sequential(nn.Linear(6, 3)), {}, FROZEN_DAMPING),
        (nn.Linear(6, 3), {}, FROZEN_DAMPING),
        (two_layers("0", "2"), {}, 0.1),
        (nn.Sequential(two_layers(), nn.LayerNorm(3), nn.Linear(3, 3)), {}, 0.1),  # a frozen backbone but for its norm
        (two_layers("2"), {"curvature_settings": {"relative_damping": 2.0}}, 2.0),
        (two_layers("2"), {"curvature_settings": {}}, 0.1),
        (two_layers("2"), {"curvature": "diagonal"}, 0.1),
    ],
)
def test_a_head_that_learns_alone_is_damped_more_unless_something_is_given(model, settings, expected):
    monitor = sgoif.watch(model, anchors=HOLDOUT, train_size=10, method=sgoif.Method(**settings))
    assert monitor.engine.curvature.relative_damping == expected


def test_an_audit_follows_the_same_rule():
    model, examples = two_layers("2"), (torch.randn(30, 6), torch.arange(30) % 3)
    ruled, asked, usual = (
        sgoif.audit(model, examples, anchors=HOLDOUT, method=sgoif.Method(curvature_settings=settings)).table["harm"]
        for settings in (None, {"relative_damping": FROZEN_DAMPING}, {"relative_damping": 0.1})
    )
    assert (ruled == asked).all()
    assert not (ruled == usual).all()
