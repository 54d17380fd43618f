"""Cross-checks with other libraries' per-sample gradients, on models without coupling between examples."""

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


PEERS = {
    "grouped convolutions": small_net,
    "residual, eval": lambda: ResidualNet().eval(),
    "attention of Linears": lambda: TransformerNet(attention="linear"),
    "depthwise with LayerScale": ConvNextNet,
}


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


@pytest.mark.parametrize("kind", PEERS)
def test_vmap_of_grad_agrees(kind):
    torch.manual_seed(0)
    model = PEERS[kind]().double()
    pixels, labels = images()
    mine, theirs = ours(model, pixels, labels), per_example_gradients(model, F.cross_entropy, pixels, labels)
    assert set(mine) == set(theirs)
    for name in mine:
        torch.testing.assert_close(mine[name], theirs[name], rtol=1e-9, atol=1e-12)


def by_opacus(model, pixels, labels):
    opacus = pytest.importorskip("opacus")
    wrapped = opacus.GradSampleModule(model, loss_reduction="sum")
    F.cross_entropy(wrapped(pixels), labels, reduction="sum").backward()
    return {name: value.grad_sample for name, value in model.named_parameters()}


def by_backpack(model, pixels, labels):
    backpack = pytest.importorskip("backpack")
    extended, loss = backpack.extend(model), backpack.extend(nn.CrossEntropyLoss(reduction="sum"))
    with backpack.backpack(backpack.extensions.BatchGrad()):
        loss(extended(pixels), labels).backward()
    return {name: value.grad_batch for name, value in model.named_parameters()}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("other", [by_opacus, by_backpack])
def test_other_libraries_agree(other):
    torch.manual_seed(0)
    model = small_net().double()
    pixels, labels = images()
    mine, theirs = ours(model, pixels, labels), other(model, pixels, labels)
    for name, value in theirs.items():
        torch.testing.assert_close(mine[name], value, rtol=1e-9, atol=1e-12)
