"""The head is found, and a wrong factor is caught on the first step."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sgoif.errors import HeadError
from sgoif.gradients import Capture, check_factor, find_head, fit_factor, gradient_factor
from sgoif.gradients.contractions import materialise, pool_positions
from sgoif.records import GradientRows
from sgoif.tasks.classification import logit_gradients
from tests.cases import ConvNextNet, ResidualNet, TransformerNet, images


@pytest.mark.parametrize("make", [ResidualNet, TransformerNet, ConvNextNet])
def test_the_head_is_found_without_a_trace(make):
    model = make().double()
    pixels, _ = images()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    assert find_head(model, lambda: model(pixels)).name == "fc"
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert model.training


def test_a_convolutional_head_averaged_over_positions_is_found():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    pixels = torch.randn(2, 3, 8, 8)
    assert find_head(model, lambda: model(pixels)).name == "2"


def test_a_convolution_that_is_averaged_after_an_activation_is_no_head_however_small_the_logits():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with torch.no_grad():
        model[0].weight.mul_(1e-6), model[0].bias.zero_()
    with pytest.raises(HeadError, match="No layer produces"):
        find_head(model, lambda: model(torch.randn(2, 3, 8, 8)))


class OwnLinear(nn.Linear):
    def forward(self, x):
        return F.linear(x, self.weight, self.bias).tanh()


def test_a_linear_head_with_a_forward_of_its_own_is_refused():
    x, model = torch.randn(4, 3), nn.Sequential(OwnLinear(3, 2))
    with pytest.raises(HeadError, match="a OwnLinear with a forward of its own"):
        find_head(model, lambda: model(x))


def test_a_model_that_gives_no_numbers_is_named_as_the_cause():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    nn.init.constant_(model[2].weight, float("nan"))
    with pytest.raises(HeadError, match="output for the first hold-out examples is NaN or infinite"):
        find_head(model, lambda: model(torch.ones(2, 4)))


def test_no_head_or_several_raise_with_the_candidates():
    model = ResidualNet().double()
    pixels, _ = images()
    with pytest.raises(HeadError, match=r"No layer produces.*Name it: head='name'.*Candidates: .*fc \(5, 4\)"):
        find_head(model, lambda: 2 * model(pixels))
    twin = nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Linear(3, 2)})
    twin["b"].load_state_dict(twin["a"].state_dict())
    x = torch.randn(4, 3)
    with pytest.raises(HeadError, match=r"Several layers \(a, b\)"):
        find_head(twin, lambda: (twin["a"](x), twin["b"](x))[1])
    assert find_head(twin, lambda: x, name="a").name == "a"


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_factor_fits_every_kind_of_cross_entropy(reduction, smoothing, soft, weighted):
    model = ResidualNet().double()
    pixels, labels = images(batch=8)
    targets = torch.rand(8, 4, dtype=torch.float64).softmax(1) if soft else labels
    weights = torch.tensor([1.0, 2.0, 0.5, 1.5], dtype=torch.float64) if weighted else None
    with Capture([find_head(model, lambda: model(pixels))]) as capture:
        logits = model(pixels)
        F.cross_entropy(logits, targets, weight=weights, label_smoothing=smoothing, reduction=reduction).backward()
    count = weights[labels].sum() if weighted and not soft else 8
    scale = gradient_factor(loss_reduction=reduction, num_examples=count)
    expected = logit_gradients(logits.detach(), targets, label_smoothing=smoothing, class_weights=weights)
    check_factor(fit_factor(capture.calls[0].grad, expected), scale)
    torch.testing.assert_close(capture.calls[0].grad * scale, expected, rtol=1e-10, atol=1e-12)


def test_a_wrong_declaration_is_caught_with_the_value_found():
    model = ResidualNet().double()
    pixels, labels = images(batch=8)
    with Capture([find_head(model, lambda: model(pixels))]) as capture:
        logits = model(pixels)
        (F.cross_entropy(logits, labels) / 4).backward()
    fit = fit_factor(capture.calls[0].grad, logit_gradients(logits.detach(), labels))
    with pytest.raises(HeadError, match=r"are 0\.25 times what the declared settings say.*0\.03125"):
        check_factor(fit, gradient_factor(loss_reduction="mean", num_examples=8))
    check_factor(fit, gradient_factor(loss_reduction="mean", num_examples=8, accumulate=4))
    with pytest.raises(HeadError, match="must be 'mean' or 'sum', got 'none'"):
        gradient_factor(loss_reduction="none", num_examples=8)


def test_another_loss_is_not_taken_for_cross_entropy():
    model = ResidualNet().double()
    pixels, labels = images(batch=8)
    with Capture([find_head(model, lambda: model(pixels))]) as capture:
        logits = model(pixels)
        F.mse_loss(logits, F.one_hot(labels, 4).double()).backward()
    fit = fit_factor(capture.calls[0].grad, logit_gradients(logits.detach(), labels))
    with pytest.raises(HeadError, match="do not look like cross-entropy"):
        check_factor(fit, 8.0)


def test_bf16_autocast_passes_the_check():
    model = ResidualNet()
    pixels, labels = images(batch=32)
    with Capture([find_head(model, lambda: model(pixels.float()))]) as capture:
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(pixels.float())
        F.cross_entropy(logits.float(), labels).backward()
    fit = fit_factor(capture.calls[0].grad, logit_gradients(logits.detach().float(), labels))
    check_factor(fit, 32.0, low_precision=True)


def test_the_gradient_of_a_head_that_is_averaged_over_positions_is_of_its_pooled_rows():
    inputs, logit_grads = torch.randn(3, 1, 4, 5), torch.randn(3, 1, 2, 1).expand(-1, -1, -1, 5) / 5
    rows = GradientRows("head", inputs, logit_grads)
    features, grads = pool_positions(rows)
    torch.testing.assert_close(grads[:, None, :, None] * features[:, None, None], materialise(rows))
