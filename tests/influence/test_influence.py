"""Sign, units, anchors and tracking, against float64 truths."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sgoif.curvature import create
from sgoif.errors import SgoifError
from sgoif.gradients import Capture, ExactSpace, select_layers
from sgoif.influence import Anchors, Gate, GateSettings, HoldOut, Tracker, probe, refit_head, score
from sgoif.linalg import Dense, Richardson, flatten, unflatten
from sgoif.records import BlockShape
from tests.cases import ResidualNet, images

L2 = 0.05


def losses(outputs, labels):
    return F.cross_entropy(outputs, labels, reduction="none")


def anchors_of(model, inputs, labels, **settings):
    """Anchors of a linear model, and a function that refreshes them."""
    (layer,) = select_layers(nn.ModuleDict({"fc": model}))
    holdout = HoldOut((inputs, labels), num_classes=model.out_features)
    anchors = Anchors(holdout, {"fc": ExactSpace(layer)}, dtype=inputs.dtype, **settings)
    return anchors, lambda: anchors.refresh(model, Capture([layer]), model, losses)


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
            if g.norm() < 1e-14:
                break
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
    anchors = Anchors(HoldOut((problem.ax, problem.ay)), {layer.name: space}, dtype=torch.float64)
    anchors.refresh(model, Capture([layer]), model, losses)
    g = anchors.gradients
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
    layers = select_layers(model, ["norm1", "conv2", "norm2", "fc"])  # outputs of both norms are changed in place
    spaces = {layer.name: ExactSpace(layer) for layer in layers}
    anchors = Anchors(HoldOut((pixels, labels)), spaces, dtype=torch.float64)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    rng = torch.get_rng_state()
    anchors.refresh(model, Capture(layers), model, losses)
    found = anchors.gradients
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


def test_labels_outside_the_classes_are_refused():
    with pytest.raises(SgoifError, match="range from 0 to 7"):
        HoldOut((torch.zeros(3, 2), torch.tensor([0, 1, 7])), num_classes=3)


def test_draws_are_balanced_cover_everything_and_repeat():
    labels = torch.cat([torch.zeros(30), torch.ones(10), torch.full((20,), 2.0)]).long()
    one, two = (HoldOut((torch.zeros(60, 1), labels), seed=3) for _ in range(2))
    draws = [one.next_positions(12) for _ in range(5)]
    assert sorted(torch.cat(draws).tolist()) == list(range(60))
    for draw in draws:  # 6, 2 and 4 of the classes in each draw, up to rounding
        counts = torch.bincount(labels[draw], minlength=3)
        assert (counts - torch.tensor([6, 2, 4])).abs().max() <= 1
    assert two.next_positions(12).tolist() == draws[0].tolist()


def test_a_class_that_has_not_come_up_is_not_known_and_never_suggested():
    anchors, refresh = anchors_of(nn.Linear(4, 3), torch.randn(8, 4), torch.tensor([0, 1] * 4))
    refresh()
    assert anchors.known.tolist() == [True, True, False]
    found = score(torch.tensor([[0.0, 1.0, -50.0]]), torch.tensor([0]), known=anchors.known)
    assert found.worst_anchor.item() == 1


def test_noise_is_the_standard_error_of_the_mean_gradient():
    torch.manual_seed(0)
    model, inputs, labels = nn.Linear(5, 2).double(), torch.randn(2000, 5).double(), torch.arange(2000) % 2
    anchors, refresh = anchors_of(model, inputs, labels, per_refresh=80)
    truth, refresh_truth = anchors_of(model, inputs, labels, per_refresh=2000)
    refresh_truth()
    errors, claimed = [], []
    for _ in range(25):
        anchors.gathered.zero_()  # each draw on its own
        refresh()
        gap = (anchors.gradients["fc"] - truth.gradients["fc"]).flatten(1).norm(dim=1)
        errors.append((gap / truth.gradients["fc"].flatten(1).norm(dim=1)).square())
        claimed.append(anchors.noise.square())
    # 25 draws of 40: their mean square error is known within about 10-20%
    torch.testing.assert_close(torch.stack(errors).mean(0), torch.stack(claimed).mean(0), rtol=0.4, atol=0)


def test_a_refitted_head_reaches_the_ridge_optimum_and_in_parts_the_same(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(60, 4, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 3, (60,), generator=generator)
    start = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    moved = refit_head(features, labels, start, ridge=0.1, iterations=300).requires_grad_()
    pull = 0.1 * features.square().mean(0).mean()
    objective = F.cross_entropy(features @ moved.mT, labels) + pull / 2 * (moved - start).square().sum()
    assert torch.autograd.grad(objective, moved)[0].norm() < 1e-6
    trust = torch.rand(60, generator=generator, dtype=torch.float64)
    whole = refit_head(features, labels, start, trust=trust)
    monkeypatch.setattr(probe, "_MOST_LOGITS", 21)  # seven rows at once, and four at the end
    torch.testing.assert_close(refit_head(features, labels, start, trust=trust), whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mode", ["relative", "linear", "paper", "moving-average", "ramp", "ramp2", "none"])
def test_every_gate_mode_gives_confidences_between_zero_and_one(mode):
    gate = Gate(GateSettings(mode=mode, beta_power=1.0, gamma_power=-1.0), train_size=100, planned_steps=200)
    for step in range(200):
        gate.observe_gradient(torch.tensor(1.0))
        residual = torch.tensor([0.05, 0.3, 2.0, float("inf")])
        reading = gate.read(residual, torch.zeros(4), torch.ones(4), learning_rate=0.1 * (1 - step / 200))
        assert ((reading.confidence >= 0) & (reading.confidence <= 1)).all()
        assert reading.confidence[3] == 0
    if mode == "paper":  # an absolute tolerance of κβΓ ~ 1e-4: shut for good
        assert (reading.confidence == 0).all()
    if mode == "ramp":
        assert reading.confidence[0] == 1.0


def test_the_gate_falls_with_the_residual_and_rises_with_the_tolerance():
    residual = torch.linspace(0, 1, 20)
    confidences = [
        Gate(GateSettings(kappa=kappa), train_size=10, planned_steps=10)
        .read(residual, torch.zeros(20), torch.ones(20))
        .confidence
        for kappa in (0.3, 0.5, 0.9)
    ]
    for low, high in itertools.pairwise(confidences):
        assert (high >= low).all()
        assert (low.diff() <= 0).all()
    with pytest.raises(SgoifError, match="gate must be one of relative, linear"):
        GateSettings(mode="wide open")


@settings(max_examples=5)
@given(st.integers(1, 5), st.integers(0, 2**31))
def test_tracking_a_fixed_problem_reaches_the_leaky_inverse(anchors, seed):
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(6, 6, generator=generator)
    matrix = root @ root.T + torch.eye(6)
    shapes = {"fc": BlockShape(1, 2, 3, False)}
    g = {"fc": torch.randn(anchors, 1, 2, 3, generator=generator)}
    tracker = Tracker(shapes, anchors, solver=Richardson(leak_horizon=50))
    tracker.use_operator(Dense(matrix))
    tracker.retarget(g)
    for steps in (1, 4, 795):
        _, residual = tracker.advance(steps)
    top = tracker._prepared.lambda_max
    assert 0.95 < top / torch.linalg.eigvalsh(matrix)[-1] < 1.0001
    leaky = matrix + top / 50 * torch.eye(6)
    truth = torch.linalg.solve(leaky.double(), flatten(g, shapes).double())
    torch.testing.assert_close(flatten(tracker.directions, shapes).double(), truth, rtol=1e-3, atol=1e-4)
    assert residual[-1].max() < 1e-3


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
    _, residual = tracker.advance(steps=2)
    scores = score(space.dots(call, tracker.directions["fc"]), labels, confidence=residual[-1])
    assert scores.harm.shape == (8,)


@given(st.integers(2, 6), st.integers(1, 8), st.integers(0, 2**31))
def test_scores_are_what_they_say(anchors, batch, seed):
    generator = torch.Generator().manual_seed(seed)
    dots = torch.randn(batch, anchors, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, anchors, (batch,), generator=generator)
    confidence = torch.rand(anchors, generator=generator, dtype=torch.float64)
    found = score(dots, labels, confidence, weighting="confidence")
    for i in range(batch):
        others = {v: -dots[i, v].item() for v in range(anchors) if v != labels[i]}
        assert found.worst[i].item() == max(others.values())
        assert others[found.worst_anchor[i].item()] == found.worst[i].item()
        assert found.own[i].item() == -dots[i, labels[i]].item()
    torch.testing.assert_close(found.harm, -(dots * confidence).sum(1) / confidence.sum())
    torch.testing.assert_close(score(dots, labels, confidence).harm, -dots.mean(1))
    shut = score(dots, labels, torch.zeros(anchors, dtype=torch.float64), weighting="confidence")
    torch.testing.assert_close(shut.harm, -dots.mean(1))


@pytest.mark.parametrize("has_trust", [False, True])
def test_a_head_refitted_in_few_examples_is_the_one_refitted_in_the_features(has_trust):
    """Fewer examples than features go by the examples' products: the same minimiser, 26 times faster at 181 x 1,153."""
    generator = torch.Generator().manual_seed(0)
    features = torch.rand(20, 40, generator=generator, dtype=torch.float64)
    labels, weight = torch.arange(20) % 3, torch.randn(3, 40, generator=generator, dtype=torch.float64)
    trust = torch.rand(20, generator=generator, dtype=torch.float64) if has_trust else torch.ones(20).double()
    trust[::5] = 0.0 if has_trust else 1.0
    few = refit_head(features, labels, weight, trust=trust)
    many = refit_head(features.repeat(3, 1), labels.repeat(3), weight, trust=trust.repeat(3))  # the same objective
    torch.testing.assert_close(few, many, rtol=0, atol=1e-12)
    assert (few - weight).abs().max() > 0.1


def test_drift_is_how_far_an_anchor_moved_beyond_the_noise_of_its_draws():
    """E_lin: nothing before two draws, nothing for draws of one distribution, the change where the model moved."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    anchors, refresh = anchors_of(model, torch.randn(4000, 3).double(), torch.arange(4000) % 2, per_refresh=2000)
    refresh()
    assert anchors.drift.isnan().all()
    before = anchors.gradients["fc"].flatten(1)
    refresh()
    after = anchors.gradients["fc"].flatten(1)
    apart = (after - before).norm(dim=1) / after.norm(dim=1)
    assert (anchors.drift < apart).all()  # less than what the draws differ by
    with torch.no_grad():
        model.weight[0] += 3
    refresh()
    moved = anchors.gradients["fc"].flatten(1)
    expected = (moved - after).norm(dim=1) / moved.norm(dim=1)
    torch.testing.assert_close(anchors.drift, expected, rtol=0.1, atol=0)


def test_a_tracker_that_was_saved_takes_the_same_steps():
    root = torch.randn(2, 6, 6, generator=torch.Generator().manual_seed(3))
    first, second = (Dense(part @ part.T + torch.eye(6)) for part in root)
    saved, loaded = (Tracker({"fc": BlockShape(1, 1, 6, False)}, 1) for _ in range(2))
    saved.use_operator(first)
    saved.use_operator(second)
    loaded.load_state_dict(saved.state_dict())
    loaded.use_operator(second)
    for tracker in (saved, loaded):
        tracker.retarget({"fc": torch.ones(1, 1, 1, 6)})
        tracker.advance(steps=1)
    assert torch.equal(saved.columns, loaded.columns)


def test_the_paper_weighs_by_confidence_twice():
    dots, confidence = torch.tensor([[1.0, -2.0, 4.0]]), torch.tensor([0.5, 1.0, 0.25])
    expected = -(confidence.square() * dots).sum(1) / confidence.sum()
    torch.testing.assert_close(score(dots, torch.tensor([0]), confidence, weighting="paper").harm, expected)
