"""Cross-checks with other libraries' per-sample gradients, on models without coupling between examples."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sgoif.gradients import Capture, ExactSpace, select_layers
from sgoif.gradients.functional import per_example_gradients
from tests.cases import ConvNextNet, ResidualNet, TransformerNet, images


def small_net() -> nn.Module:
    layers = [nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(6, 4, 3, groups=2), nn.Sigmoid()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))


def ours(model, pixels, labels):
    layers = select_layers(model)
    with Capture(layers) as capture:
        F.cross_entropy(model(pixels), labels, reduction="sum").backward()
    found = {}
    for layer in layers:
        calls = [call for call in capture.calls if call.layer == layer.name]
        found |= layer.tensors(sum(ExactSpace(layer).examples(call) for call in calls))
    model.zero_grad()
    return found


def eval_residual() -> nn.Module:
    return ResidualNet().eval()


@pytest.mark.parametrize("make", [small_net, eval_residual, TransformerNet, ConvNextNet])
def test_vmap_of_grad_agrees(make):
    torch.manual_seed(0)
    model = make().double()
    if make is TransformerNet:
        model = TransformerNet(attention="linear").double()
    pixels, labels = images()
    mine, theirs = ours(model, pixels, labels), per_example_gradients(model, F.cross_entropy, pixels, labels)
    assert set(mine) == set(theirs)
    for name in mine:
        torch.testing.assert_close(mine[name], theirs[name], rtol=1e-9, atol=1e-12)


def test_opacus_agrees():
    opacus = pytest.importorskip("opacus")
    torch.manual_seed(0)
    model = small_net().double()
    pixels, labels = images()
    mine = ours(model, pixels, labels)
    wrapped = opacus.GradSampleModule(model, loss_reduction="sum")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        F.cross_entropy(wrapped(pixels), labels, reduction="sum").backward()
    for name, value in model.named_parameters():
        torch.testing.assert_close(mine[name], value.grad_sample, rtol=1e-9, atol=1e-12)


def test_backpack_agrees():
    backpack = pytest.importorskip("backpack")
    from backpack.extensions import BatchGrad

    torch.manual_seed(0)
    model = small_net().double()
    pixels, labels = images()
    mine = ours(model, pixels, labels)
    extended = backpack.extend(model)
    loss = backpack.extend(nn.CrossEntropyLoss(reduction="sum"))
    with backpack.backpack(BatchGrad()):
        loss(extended(pixels), labels).backward()
    for name, value in model.named_parameters():
        torch.testing.assert_close(mine[name], value.grad_batch, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("groups", [2, 4])
def test_grouped_convolutions_agree_with_vmap(groups):
    """vmap never contracts patches by hand, which is where grouped convolutions go wrong."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.Conv2d(4, 8, 3, groups=groups), nn.Flatten(), nn.Linear(288, 4)
    ).double()
    pixels, labels = images()
    mine, theirs = ours(model, pixels, labels), per_example_gradients(model, F.cross_entropy, pixels, labels)
    torch.testing.assert_close(mine["1.weight"], theirs["1.weight"], rtol=1e-10, atol=1e-13)
