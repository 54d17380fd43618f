"""Compiled models: watched inside the graph, run eagerly in passes of our own."""

import copy
import shutil
from contextlib import nullcontext

import numpy as np
import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn
from torch._dynamo.utils import counters

import sgoif
from sgoif.errors import HeadError, SgoifError
from sgoif.gradients.models import plain_model
from tests.training.loops import GroupNormNet, TwoParts, batches, data, fresh, make_loop, run_twins, take_step, watch

BACKEND = "eager"  # the same graph, run as it was traced; needs no compiler


def whole(model, backend=BACKEND):
    return torch.compile(model, backend=backend, fullgraph=True)


def in_place(model, backend=BACKEND):
    model.compile(backend=backend, fullgraph=True)
    return model


def compile_backbone(model):
    model.backbone = torch.compile(model.backbone, backend=BACKEND)
    return model


def compile_head(model):
    model.fc.compile(backend=BACKEND)
    return model


WAYS = {
    "whole, ahead of time": lambda model: whole(model, "aot_eager"),
    "in place, ahead of time": lambda model: in_place(model, "aot_eager"),
    "inside": lambda model: nn.Sequential(nn.Identity(), whole(model)),
    "inside, in place": lambda model: nn.Sequential(nn.Identity(), in_place(model)),
    "head alone": compile_head,
    "backbone alone": compile_backbone,
}


@pytest.fixture(autouse=True)
def _forget_graphs():
    torch._dynamo.reset()
    counters.clear()


def loop(model, step, *, call=None):
    """Plain SGD; ``call`` is the compiled model, where it is not the one that is watched."""
    make_loop(batches(data()[0], count=6), call=None if call is None else lambda _, x: call(x))(model, step)


def make_warm(wrap):
    """A model that was compiled and run, forward and backward, before it is watched."""

    def make():
        model = wrap(TwoParts().double())
        before = copy.deepcopy(model.state_dict())
        F.cross_entropy(model(data()[0][0][:12]), data()[0][1][:12]).backward()
        model.load_state_dict(before)
        model.zero_grad()
        return model

    return make


@pytest.fixture(scope="module")
def plain():
    """The run of a model that is not compiled."""
    return run_twins(TwoParts, loop, data()[1])[1]


def assert_same_scores(run, other):
    np.testing.assert_allclose(run.visits["harm"], other.visits["harm"], rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("wrap", WAYS.values(), ids=WAYS)
def test_a_model_that_was_compiled_and_run_before_is_watched(wrap, plain):
    """Weights to the bit those of the compiled run without a monitor, scores those of the run without a compiler."""
    _, run = run_twins(make_warm(wrap), loop, data()[1])
    assert_same_scores(run, plain)
    assert counters["stats"]["unique_graphs"] and not counters["graph_break"]


@pytest.mark.parametrize("wrap", [whole, in_place])
def test_a_watched_model_has_two_graphs_and_its_own_when_closed(wrap):
    model, (train_set, holdout) = fresh(make_warm(wrap)), data()
    head = plain_model(model).fc
    for _ in range(3):  # one monitor after another
        monitor = watch(model, holdout, plan=sgoif.Plan(refresh_every=4, observe_every=2, stride=2))
        loop(model, monitor.step)
        assert monitor.faults == {}
        assert len(monitor.close().visits["harm"]) == 3 * 12
        assert "forward" not in vars(head)
    assert counters["stats"]["unique_graphs"] == 2
    with torch.compiler.set_stance("fail_on_recompile"):
        model(train_set[0][:12])


def test_a_model_that_is_compiled_after_watch(plain):
    """Its graph breaks at the head, where a hook is when it is traced; a graph from before has none, which raises."""
    monitor = watch(model := fresh(TwoParts), data()[1])
    loop(model, monitor.step, call=torch.compile(model, backend=BACKEND))
    assert_same_scores(monitor.close(), plain)
    assert counters["graph_break"]
    torch._dynamo.reset()
    fresh(make_warm(whole))
    monitor = watch(model := fresh(TwoParts), data()[1])
    with pytest.raises(HeadError, match=r"received 0 gradients.*after torch.compile"):
        loop(model, monitor.step, call=torch.compile(model, backend=BACKEND))


def test_low_precision():
    def call(model, x):
        with torch.autocast("cpu", torch.bfloat16):
            return model(x)

    low = make_loop(batches(data()[0], count=6), call=call, loss=lambda z, y: F.cross_entropy(z.float(), y))
    run_twins(make_warm(whole), low, data()[1])


def test_layers_of_a_compiled_backbone_are_scored():
    holdout = data()[1]
    _, plain = run_twins(TwoParts, loop, holdout, layers=["backbone.0"])
    _, run = run_twins(make_warm(whole), loop, holdout, layers=["backbone.0"])
    assert_same_scores(run, plain)
    run_twins(make_warm(compile_backbone), loop, holdout, layers=["backbone._orig_mod.0"])  # projected by its name


class Attentive(GroupNormNet):
    """Attention, which is called with more than one tensor and gives more than one."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x):
        tokens = self.conv(x).flatten(2).mT
        return self.fc(self.attention(tokens, tokens, tokens, need_weights=False)[0].mean(1))


def test_compiled_attention_cannot_be_scored_beside_the_head():
    holdout, layers = data()[1], ["attention.out_proj"]
    run_twins(Attentive, loop, holdout, layers=layers)
    run_twins(lambda: whole(Attentive()), loop, holdout)
    with pytest.raises(SgoifError, match=r"'attention.out_proj' is compiled.*Leave it out"):
        watch(whole(fresh(Attentive)), holdout, layers=layers)


def test_two_models_in_one_step():
    """Each monitor is given its own head's gradients, though both heads have one name."""
    (pixels, labels), holdout = data()
    models = [fresh(make_warm(whole), seed=seed) for seed in (0, 1)]
    alone, part = [], torch.arange(12)
    for model in models:
        monitor = watch(model, holdout)
        take_step(monitor, part, pixels[part], labels[part])
        alone.append(monitor.close().visits["loss"])
    first, second = (watch(model, holdout) for model in models)
    with first.step(part, labels[part]), second.step(part, labels[part]):
        sum(F.cross_entropy(model(pixels[part]), labels[part]) for model in models).backward()
    for monitor, losses in zip((first, second), alone, strict=True):
        np.testing.assert_array_equal(monitor.close().visits["loss"], losses)
    assert not np.allclose(*alone)


def test_a_copy_made_within_a_step_has_its_own_weights():
    (pixels, labels), holdout = data()
    model = fresh(make_warm(in_place))
    monitor = watch(model, holdout)
    with monitor.step(torch.arange(12), labels[:12]):
        copied = copy.deepcopy(model.fc)
        F.cross_entropy(model(pixels[:12]), labels[:12]).backward()
    with torch.no_grad():
        copied.weight.zero_()
        copied.bias.fill_(2.0)
    assert (copied(torch.ones(3, 6, dtype=torch.float64)) == 2.0).all()


def test_two_backward_passes_through_one_forward_are_noticed():
    (pixels, labels), holdout = data()
    model = fresh(make_warm(whole))
    monitor = watch(model, holdout)
    with pytest.raises(SgoifError, match="backward ran twice"), monitor.step(torch.arange(12), labels[:12]):
        loss = F.cross_entropy(model(pixels[:12]), labels[:12])
        loss.backward(retain_graph=True)
        loss.backward()


@pytest.mark.parametrize("wrap", [whole, in_place])
def test_audit_and_attribute_take_a_compiled_model_and_compile_nothing(wrap):
    train_set, holdout = data()
    plain, compiled = fresh(TwoParts), wrap(fresh(TwoParts))
    for ask in (
        lambda model: sgoif.audit(model, train_set, anchors=holdout).table["harm"],
        lambda model: sgoif.attribute(model, train_set, holdout, as_matrix=True),
    ):
        np.testing.assert_array_equal(ask(compiled), ask(plain))
    assert not counters["stats"]


def test_tags_of_a_compiled_model():
    (pixels, labels), (held, held_labels) = data()
    tags, held_tags = (F.one_hot(y, 4).double() for y in (labels, held_labels))
    found = []
    for wrap in (lambda model: model, whole):
        model = wrap(fresh(TwoParts))
        monitor = sgoif.watch(model, anchors=(held, held_tags), train_size=48, task="multilabel")
        for part in torch.arange(48).split(12):
            with monitor.step(part, tags[part]):
                F.binary_cross_entropy_with_logits(model(pixels[part]), tags[part]).backward()
        assert monitor.faults == {}
        found.append(monitor.close().sql("select loss from tags order by id, tag").to_pydict()["loss"])
    np.testing.assert_allclose(*found, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("wrap", [whole, in_place])
def test_inductor(wrap, plain):
    """Its kernels may be fused otherwise around the head, so weights need not be equal to the bit."""
    holdout, ends = data()[1], []
    for is_watched in (False, True):
        model = fresh(make_warm(lambda net: wrap(net, "inductor")))
        monitor = watch(model, holdout) if is_watched else None
        loop(model, monitor.step if monitor else lambda *_: nullcontext())
        ends.append(model.state_dict())
    torch.testing.assert_close(*ends)
    assert monitor.faults == {}
    assert_same_scores(monitor.close(), plain)
