"""Sign, units, anchors and tracking, against float64 truths."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sgoif.curvature import create
from sgoif.errors import SgoifError
from sgoif.gradients import Capture, ExactSpace, select_layers
from sgoif.influence import ClassAnchors, Tracker, score
from sgoif.linalg import Dense, Richardson, flatten, unflatten
from sgoif.records import BlockShape
from tests.cases import ResidualNet, images

L2 = 0.05


class Logistic:
    """Regularised softmax regression at its optimum, with the exact Hessian."""

    def __init__(self, n=60, d=4, k=3, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(n, d, generator=generator, dtype=torch.float64)
        self.y = torch.randint(0, k, (n,), generator=generator)
        self.ax = torch.randn(12, d, generator=generator, dtype=torch.float64)
        self.ay = torch.arange(12) % k
        self.n, self.d, self.k = n, d, k

    def loss(self, theta, weights):
        w = theta.reshape(self.k, self.d)
        return (weights * F.cross_entropy(self.x @ w.T, self.y, reduction="none")).sum() + L2 / 2 * theta.square().sum()

    def anchor_loss(self, theta, v):
        member = self.ay == v
        return F.cross_entropy(self.ax[member] @ theta.reshape(self.k, self.d).T, self.ay[member])

    def optimum(self, weights):
        theta = torch.zeros(self.k * self.d, dtype=torch.float64)
        for _ in range(30):
            g = torch.func.grad(self.loss)(theta, weights)
            theta = theta - torch.linalg.solve(torch.func.hessian(self.loss)(theta, weights), g)
        return theta


def test_a_positive_score_means_that_more_weight_raises_the_anchors_loss():
    problem = Logistic()
    uniform = torch.full((problem.n,), 1 / problem.n, dtype=torch.float64)
    theta = problem.optimum(uniform)
    hessian = torch.func.hessian(problem.loss)(theta, uniform)
    model = nn.Linear(problem.d, problem.k, bias=False).double()
    model.weight.data = theta.reshape(problem.k, problem.d)
    (layer,) = select_layers(nn.ModuleDict({"fc": model}))
    space, capture = ExactSpace(layer), Capture([layer])
    anchors = ClassAnchors(problem.ax, problem.ay, problem.k, per_class=100)
    g = anchors.gradients(model, Capture([layer]), {layer.name: space}, model)
    phi = torch.linalg.solve(hessian, flatten(g, {layer.name: layer.shape}).double())
    with capture:
        F.cross_entropy(model(problem.x), problem.y, reduction="sum").backward()
    directions = unflatten(phi, {layer.name: layer.shape})[layer.name]
    influence = -space.dots(capture.calls[0], directions)  # [n, k]
    eps = 1e-5
    for i in (0, 7, 31):
        moved = problem.optimum(uniform + eps * F.one_hot(torch.tensor(i), problem.n))
        for v in range(problem.k):
            change = (problem.anchor_loss(moved, v) - problem.anchor_loss(theta, v)) / eps
            # second-order term of the finite step: relative size eps * |I| ~ 1e-4
            torch.testing.assert_close(influence[i, v], change, rtol=2e-3, atol=1e-6)
    scores = score(space.dots(capture.calls[0], directions), problem.y)
    torch.testing.assert_close(scores.harm, influence.mean(1))


def test_anchor_gradients_are_those_of_each_classs_mean_loss_and_leave_no_trace():
    torch.manual_seed(0)
    model = ResidualNet().double()
    model.train()
    pixels, _ = images(batch=12)
    labels = torch.arange(12) % 4
    layers = select_layers(model, ["conv2", "norm2", "fc"])
    spaces = {layer.name: ExactSpace(layer) for layer in layers}
    anchors = ClassAnchors(pixels, labels, 4, per_class=3)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    rng = torch.get_rng_state()
    found = anchors.gradients(model, Capture(layers), spaces, model)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert torch.equal(rng, torch.get_rng_state())
    assert all(module.training for module in model.modules())
    assert all(value.grad is None for value in model.parameters())
    model.eval()
    for v in range(4):
        model.zero_grad()
        F.cross_entropy(model(pixels[labels == v]), labels[labels == v]).backward()
        grads = {name: value.grad for name, value in model.named_parameters()}
        for layer in layers:
            torch.testing.assert_close(found[layer.name][v], layer.block(grads), rtol=1e-6, atol=1e-9)


def test_anchor_gradients_reach_a_layer_whose_output_is_changed_in_place():
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)).double()
    layers = select_layers(model)
    x, labels = torch.randn(9, 4, dtype=torch.float64), torch.arange(9) % 3
    anchors = ClassAnchors(x, labels, 3)
    found = anchors.gradients(model, Capture(layers), {la.name: ExactSpace(la) for la in layers}, model)
    F.cross_entropy(model(x[labels == 1]), labels[labels == 1]).backward()
    grads = {name: value.grad for name, value in model.named_parameters()}
    torch.testing.assert_close(found["0"][1], layers[0].block(grads), rtol=1e-6, atol=1e-9)


def test_a_class_without_hold_out_examples_is_named():
    with pytest.raises(SgoifError, match=r"missing: \[2\]"):
        ClassAnchors(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]), 3)


def test_draws_are_balanced_fresh_and_repeatable():
    labels = torch.arange(40) % 4
    one, two = (ClassAnchors(torch.zeros(40, 1), labels, 4, per_class=5, seed=3) for _ in range(2))
    first, second = one.draw(), one.draw()
    assert torch.bincount(labels[first]).tolist() == [5, 5, 5, 5]
    assert len(set(first.tolist())) == 20
    assert first.tolist() != second.tolist()
    assert two.draw().tolist() == first.tolist()


@settings(max_examples=15)
@given(st.integers(1, 5), st.integers(0, 2**31))
def test_tracking_a_fixed_problem_reaches_the_leaky_inverse(anchors, seed):
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(6, 6, generator=generator)
    matrix = root @ root.T + torch.eye(6)
    shapes = {"fc": BlockShape(1, 2, 3, False)}
    g = {"fc": torch.randn(anchors, 1, 2, 3, generator=generator)}
    tracker = Tracker(shapes, anchors, solver=Richardson(leak_horizon=50))
    tracker.use_operator(Dense(matrix))
    for _ in range(800):
        residual = tracker.advance(g)
    leaky = matrix + torch.linalg.eigvalsh(matrix)[-1] / 50 * torch.eye(6)
    truth = torch.linalg.solve(leaky.double(), flatten(g, shapes).double())
    torch.testing.assert_close(flatten(tracker.directions, shapes).double(), truth, rtol=1e-3, atol=1e-4)
    assert residual.max() < 1e-3


def test_a_scored_step_runs_on_the_meta_device_where_host_syncs_raise():
    shapes = {"fc": BlockShape(1, 3, 5, True)}
    model = nn.Linear(4, 3, device="meta")
    (layer,) = select_layers(nn.ModuleDict({"fc": model}))
    space, capture = ExactSpace(layer), Capture([layer])
    curvature = create("kfac", shapes, device="meta")
    tracker = Tracker(shapes, 3, device="meta")
    labels = torch.zeros(8, dtype=torch.int64, device="meta")
    with capture:
        F.cross_entropy(model(torch.zeros(8, 4, device="meta")), labels).backward()
    (call,) = capture.calls
    curvature.observe([space.rows(call)])
    tracker.use_operator(curvature.operator())
    residual = tracker.advance({"fc": torch.zeros(3, 1, 3, 5, device="meta")})
    scores = score(space.dots(call, tracker.directions["fc"]), labels, confidence=residual)
    assert scores.harm.shape == (8,)


@given(st.integers(2, 6), st.integers(1, 8), st.integers(0, 2**31))
def test_scores_are_what_they_say(anchors, batch, seed):
    generator = torch.Generator().manual_seed(seed)
    dots = torch.randn(batch, anchors, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, anchors, (batch,), generator=generator)
    confidence = torch.rand(anchors, generator=generator, dtype=torch.float64)
    found = score(dots, labels, confidence)
    for i in range(batch):
        others = {v: -dots[i, v].item() for v in range(anchors) if v != labels[i]}
        assert found.worst[i].item() == max(others.values())
        assert others[found.worst_anchor[i].item()] == found.worst[i].item()
        assert found.own[i].item() == -dots[i, labels[i]].item()
    torch.testing.assert_close(found.harm, -(dots * confidence).sum(1) / confidence.sum())
    shut = score(dots, labels, torch.zeros(anchors, dtype=torch.float64))
    torch.testing.assert_close(shut.harm, -dots.mean(1))
