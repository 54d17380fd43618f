"""Whole models: every layer of real architectures in miniature, in float64 and under autocast."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sgoif.gradients import Capture, ExactSpace, ProjectedSpace, dot_directions, gradient_norms2, select_layers, survey
from sgoif.gradients.functional import per_example_gradients
from sgoif.testing import reference_gradients
from tests.cases import CheckpointedNet, ConvNextNet, ResidualNet, SharedCallNet, TransformerNet, images

MODELS = {
    "residual, train-mode BatchNorm": ResidualNet,
    "attention module": TransformerNet,
    "attention of Linears": lambda: TransformerNet(attention="linear"),
    "depthwise with LayerScale": ConvNextNet,
    "checkpoint, reentrant": lambda: CheckpointedNet(True),
    "checkpoint, not reentrant": lambda: CheckpointedNet(False),
    "module called twice": SharedCallNet,
}


def directions_for(layers, count, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return {
        layer.name: torch.randn(count, *layer.shape.dims, generator=generator, dtype=torch.float64) for layer in layers
    }


@pytest.mark.parametrize("name", MODELS)
def test_every_layer_of_a_model_equals_the_definition(name):
    torch.manual_seed(0)
    model = MODELS[name]().double().train()
    pixels, labels = images()
    layers = select_layers(model)
    assert survey(model).share_of_parameters == 1.0

    def run():
        return F.cross_entropy(model(pixels), labels, reduction="sum")

    capture = Capture(layers)
    capture.num_examples = len(labels)
    with capture:
        run().backward()
    model.enabled = False  # the definition cannot be replayed by a checkpoint
    truth = {layer.name: reference_gradients(layer, run) for layer in layers}
    spaces = {layer.name: ExactSpace(layer) for layer in layers}
    for count in (1, 3):
        directions = directions_for(layers, count)
        expected = sum(torch.einsum("bgoi,kgoi->bk", truth[n], directions[n]) for n in truth)
        found = dot_directions(capture.calls, spaces, directions)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    norms = sum(g.square().sum((1, 2, 3)) for g in truth.values())
    torch.testing.assert_close(gradient_norms2(capture.calls, spaces), norms, rtol=1e-10, atol=0)
    # The per-example gradients add up to what autograd put into .grad, for every parameter.
    params = dict(model.named_parameters())
    for layer in layers:
        for key, total in layer.tensors(truth[layer.name].sum(0)).items():
            torch.testing.assert_close(params[key].grad, total, rtol=1e-9, atol=1e-12)
    if name in ("attention of Linears", "depthwise with LayerScale"):  # vmap takes these: a truth that shares nothing
        theirs = per_example_gradients(model, F.cross_entropy, pixels, labels)
        mine = {key: value for layer in layers for key, value in layer.tensors(truth[layer.name]).items()}
        assert mine.keys() == theirs.keys()
        for key, value in theirs.items():
            torch.testing.assert_close(mine[key], value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "name", ["residual, train-mode BatchNorm", "attention of Linears", "depthwise with LayerScale"]
)
def test_bf16_autocast_stays_within_its_rounding(name):
    # bf16 keeps 8 bits. The truth here is the float64 gradient of the float64 model; the step itself (forward and
    # backward in bf16) is off by 1-4% in norm, and the contraction adds less than that. A wrong factor or layer is
    # off by 100%.
    torch.manual_seed(0)
    model = MODELS[name]().float().train()
    exact = copy.deepcopy(model).double()
    pixels, labels = images(batch=16)
    layers = select_layers(model)
    capture = Capture(layers)
    with capture:
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(pixels.float()).float(), labels, reduction="sum")
        loss.backward()
    directions = directions_for(layers, 1)
    found = dot_directions(
        capture.calls, {la.name: ExactSpace(la) for la in layers}, {k: v.float() for k, v in directions.items()}
    )
    assert found.dtype == torch.float32
    exact_layers = select_layers(exact)
    expected = 0.0
    for layer in exact_layers:
        truth = reference_gradients(layer, lambda: F.cross_entropy(exact(pixels), labels, reduction="sum"))
        expected = expected + torch.einsum("bgoi,kgoi->bk", truth, directions[layer.name])
    assert (found - expected).norm() / expected.norm() < 0.06


def test_projected_inner_products_are_unbiased():
    torch.manual_seed(0)
    model = ResidualNet().double()
    pixels, labels = images()
    (layer,) = select_layers(model, ["conv2"])
    with Capture([layer]) as capture:
        F.cross_entropy(model(pixels), labels, reduction="sum").backward()
    (call,) = capture.calls
    truth = ExactSpace(layer).examples(call).flatten(1)
    gram = torch.zeros(5, 5, dtype=torch.float64)
    draws = 100
    for seed in range(draws):
        small = ProjectedSpace(layer, rank=4, seed=seed).examples(call).flatten(1)
        gram += small @ small.mT / draws
    expected = truth @ truth.mT
    # one draw has a relative deviation near 0.7, the mean of 100 near 0.07; with variance k instead of 1: 15
    assert (gram - expected).norm() / expected.norm() < 0.2


def test_projection_is_the_same_in_every_process_and_differs_between_layers():
    model = ResidualNet()
    first, second = select_layers(model, ["stem", "conv2"])
    torch.testing.assert_close(ProjectedSpace(first, seed=5).right, ProjectedSpace(first, seed=5).right)
    assert not torch.equal(ProjectedSpace(first, seed=5).right, ProjectedSpace(first, seed=6).right)
    assert ProjectedSpace(second, rank=4).shape.dims == (1, 4, 4)


def test_mean_reduction_accumulation_and_loss_scale_are_undone():
    from sgoif.gradients import gradient_factor

    torch.manual_seed(0)
    model = ConvNextNet().double()
    pixels, labels = images(batch=6)
    layers = select_layers(model, ["up", "fc"])
    spaces, directions = {la.name: ExactSpace(la) for la in layers}, directions_for(layers, 2)

    def scores(loss_of, scale, part):
        capture = Capture(layers)
        capture.scale = scale
        with capture:
            loss_of(model(pixels[part]), labels[part]).backward()
        return dot_directions(capture.calls, spaces, directions)

    everything = slice(None)
    plain = scores(lambda z, y: F.cross_entropy(z, y, reduction="sum"), 1.0, everything)
    micro = [slice(0, 3), slice(3, 6)]
    scale = gradient_factor(loss_reduction="mean", num_examples=3, accumulate=2, loss_scale=1024.0)
    parts = [scores(lambda z, y: 1024.0 * F.cross_entropy(z, y) / 2, scale, part) for part in micro]
    torch.testing.assert_close(torch.cat(parts), plain, rtol=1e-9, atol=1e-12)


def test_what_is_frozen_is_told_and_left_out():
    model = ResidualNet()
    for name, value in model.named_parameters():
        value.requires_grad_(name.startswith("fc"))
    coverage = survey(model)
    assert [layer.name for layer in coverage.layers] == ["fc"]
    assert set(coverage.frozen) == {"stem", "norm1", "conv2", "norm2", "shortcut"}


def test_sequence_first_layers_need_their_axis_named():
    layer = nn.Linear(4, 3).double()
    host = nn.ModuleDict({"m": layer})
    x = torch.randn(7, 2, 4, dtype=torch.float64)
    from sgoif.errors import CaptureError

    capture = Capture(select_layers(host))
    capture.num_examples = 2
    with capture, pytest.raises(CaptureError, match="axis 0 of its output has 7 entries for 2 examples"):
        layer(x).sum().backward()
    capture = Capture(select_layers(host), batch_axis={"m": 1})
    capture.num_examples = 2
    with capture:
        layer(x).sum().backward()
    assert capture.calls[0].num_examples == 2
