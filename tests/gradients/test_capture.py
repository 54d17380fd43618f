"""Capture leaves the user's training alone."""

import contextlib
import gc
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sgoif.errors import CaptureError, CoverageError
from sgoif.gradients import Capture, ExactSpace, select_layers, survey
from sgoif.gradients.capture import _Pair
from tests.cases import ResidualNet, images


def train(model, steps, capture=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        pixels, labels = images(seed=step)
        with capture or contextlib.nullcontext():
            F.cross_entropy(model(pixels), labels).backward()
        optimizer.step()
        optimizer.zero_grad()


def test_weights_are_bit_identical_with_and_without_capture():
    states = []
    for use_capture in (False, True):
        torch.manual_seed(0)
        model = ResidualNet().double()
        layers, seen = select_layers(model), []
        spaces = {layer.name: ExactSpace(layer) for layer in layers}
        capture = Capture(layers, consume=lambda call, to=seen, by=spaces: to.append(by[call.layer].norm2(call)))
        train(model, 3, capture if use_capture else None)
        assert len(seen) == (3 * len(layers) if use_capture else 0)
        states.append(model.state_dict())
    for key, value in states[0].items():
        assert torch.equal(value, states[1][key]), key


def test_hooks_are_gone_after_the_context_even_after_an_error():
    model = ResidualNet().double()
    capture = Capture(select_layers(model))
    with pytest.raises(ZeroDivisionError), capture:
        model(images()[0])
        raise ZeroDivisionError
    assert all(not module._forward_hooks for module in model.modules())
    pixels, labels = images()
    F.cross_entropy(model(pixels), labels).backward()
    assert capture.calls == []


def test_a_forward_without_gradients_opens_nothing():
    model = ResidualNet().double()
    pixels, labels = images()
    with Capture(select_layers(model)) as capture:
        with torch.no_grad():
            model(pixels)
        F.cross_entropy(model(pixels), labels).backward()
    assert len(capture.calls) == 6


def test_nothing_captured_outlives_the_step():
    """Graph node, tensor hook, pair and edge could hold each other for ever; 18 GB in a minute when they did."""
    model = ResidualNet().double()
    pixels, labels = images()
    capture = Capture(select_layers(model), consume=lambda call: None)
    for way in 3 * ("backward", "differentiate", "no gradient", "error"):
        with contextlib.suppress(ZeroDivisionError), capture:
            loss = F.cross_entropy(model(pixels), labels)
            if way == "backward":
                loss.backward()
            elif way == "differentiate":
                capture.differentiate(loss)
            elif way == "error":
                raise ZeroDivisionError
        loss = None
    gc.collect()
    assert not [item for item in gc.get_objects() if issubclass(type(item), _Pair)]


def test_a_closed_pair_holds_no_activation():
    """Its hook lives as long as the graph; inputs held there cost the memory that backward frees as it goes."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    pairs = []
    capture = Capture(select_layers(model), consume=lambda call: None)
    with capture:
        loss = model(torch.randn(4, 8)).sum()
        pairs += [pair for waiting in capture._waiting.values() for pair in waiting]
        assert all(pair.inputs for pair in pairs)
        loss.backward()
    assert len(pairs) == 2
    assert not any(pair.inputs or pair.edge for pair in pairs)


def test_backward_twice_through_one_forward_is_refused():
    model = nn.Linear(3, 2)
    capture = Capture(select_layers(nn.ModuleDict({"m": model})))
    with capture:
        loss = model(torch.ones(2, 3)).sum()
        loss.backward(retain_graph=True)
        with pytest.raises(CaptureError, match="m: backward ran twice"):
            loss.backward()


def test_opening_twice_is_refused():
    capture = Capture(select_layers(ResidualNet()))
    with capture, pytest.raises(CaptureError, match="open already"):
        capture.__enter__()


def test_an_error_in_the_consumer_need_not_reach_the_users_backward():
    model = ResidualNet().double()
    pixels, labels = images()
    caught = []

    def broken(call):
        raise RuntimeError(call.layer)

    with Capture(select_layers(model), consume=broken, on_error=caught.append):
        F.cross_entropy(model(pixels), labels).backward()
    assert len(caught) == 6
    assert model.fc.weight.grad is not None


def test_an_input_changed_in_place_is_caught():
    layer = nn.Embedding(4, 3)  # saves its indices, so autograd itself says nothing when a copy is changed
    tokens = torch.tensor([[0, 1], [2, 3]])
    with Capture(select_layers(nn.ModuleDict({"m": layer}))), pytest.raises((CaptureError, RuntimeError)):
        out = layer(tokens)
        tokens.zero_()
        out.sum().backward()


def test_dropout_inside_a_module_without_a_rule_is_refused():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.ones(4, dtype=torch.float64))

        def forward(self, x):
            return F.dropout(x * self.gain, 0.5, self.training)

    model = nn.Sequential(nn.Linear(4, 4).double(), Noisy())
    state = torch.get_rng_state()
    with Capture(select_layers(model, ["1"])):
        x = torch.randn(8, 4, dtype=torch.float64)
        out = model(x).sum()
        before = torch.get_rng_state()
        with pytest.raises(CaptureError, match=r"1 \(Noisy\) has no rule"):
            out.backward()
        assert torch.equal(before, torch.get_rng_state())
    torch.set_rng_state(state)


def test_tied_parameters_are_refused_by_name():
    model = nn.Module()
    model.one, model.two = nn.Linear(3, 3), nn.Linear(3, 3)
    model.two.weight = model.one.weight
    with pytest.raises(CoverageError, match=r"one: its parameters are tied across modules: one.weight = two.weight"):
        select_layers(model, ["one", "nothing"])
    assert survey(model).layers == ()


class Tokens(nn.Module):
    """A parameter of its own beside a layer."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, 4))
        self.fc = nn.Linear(4, 2)


def partly_frozen():
    model = nn.Linear(3, 3)
    model.bias.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (partly_frozen(), r"partly frozen \(part.bias\); freeze or train the whole layer"),
        (nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)), "parametri"),
        (nn.MultiheadAttention(4, 2, dropout=0.1), "set its dropout to 0"),
        (Tokens(), "module with children"),
    ],
)
def test_what_is_not_covered_is_reported_with_the_reason_and_the_way_out(part, reason):
    coverage = survey(nn.ModuleDict({"part": part, "last": nn.Linear(3, 2)}))
    (uncovered,) = coverage.uncovered
    assert uncovered.name == "part" and re.search(reason, str(coverage))
    assert "last" in [layer.name for layer in coverage.layers]
    assert coverage.num_trainable == 8 + sum(p.numel() for p in part.parameters() if p.requires_grad)


class Branches(nn.Module):
    """A body, two scored layers, and a way to disturb the grad mode between them."""

    def __init__(self, between=None):
        super().__init__()
        self.body, self.middle, self.head = nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 3)
        self.between, self.modes = between, []

    def forward(self, x):
        self.modes.append(torch.is_grad_enabled())
        x = torch.tanh(self.body(x))
        if self.between == "no_grad":
            with torch.no_grad():
                x = self.middle(x)
        else:
            x = self.middle(x)
        return self.head(torch.tanh(x))


@pytest.mark.parametrize("between", [None, "no_grad"])
def test_a_forward_from_the_first_layer_on_gives_the_gradients_of_a_whole_graph(between):
    torch.manual_seed(0)
    model = Branches(between).double()
    layers = select_layers(model, ["middle", "head"])
    x, labels = torch.randn(6, 4, dtype=torch.float64), torch.arange(6) % 3
    with Capture(layers) as whole:
        whole.differentiate(F.cross_entropy(model(x), labels, reduction="sum"))
    lean, model.modes = Capture(layers), []
    for _ in range(2):
        with lean:
            outputs = lean.forward(lambda: model(x))
            lean.differentiate(F.cross_entropy(outputs, labels, reduction="sum"))
        assert [call.layer for call in lean.calls] == [call.layer for call in whole.calls]
        for one, two in zip(lean.calls, whole.calls, strict=True):
            assert torch.equal(one.output_grad, two.output_grad)
            assert torch.equal(one.input, two.input)
    # where the mode is turned back, the first pass is repeated with a whole graph, and later ones begin with it
    assert model.modes == ([False, False] if between is None else [False, True, True])
    assert torch.is_grad_enabled() and all(p.grad is None for p in model.parameters())
    assert not any(module._forward_pre_hooks for module in model.modules())
