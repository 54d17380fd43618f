"""Every layer rule equals the definition (parameters replicated per example) in float64, over drawn shapes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sgoif.errors import RegistryError
from sgoif.gradients import Capture, register, registered_types, rule_for, select_layers
from sgoif.gradients.rules import Rule
from sgoif.testing import check_rule

SEEDS = st.integers(0, 2**31)
BATCH = st.integers(1, 4)


def drawn(*strategies, count=25):
    """Run a test with so many draws: each is compared with a loop over examples."""
    return lambda test: settings(max_examples=count)(given(*strategies)(test))


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@drawn(BATCH, st.lists(st.integers(1, 5), max_size=2), st.integers(1, 6), st.integers(1, 6), st.booleans(), SEEDS)
def test_linear_with_any_leading_axes(batch, positions, inputs, outputs, bias, seed):
    check_rule(nn.Linear(inputs, outputs, bias=bias).double(), random(batch, *positions, inputs, seed=seed), seed=seed)


@drawn(st.integers(2, 4), st.integers(1, 5), SEEDS)
def test_linear_with_the_example_axis_second(batch, length, seed):
    check_rule(nn.Linear(3, 4).double(), random(length, batch, 3, seed=seed), batch_axis=1, seed=seed)


@st.composite
def convolutions(draw, dimensions=(1, 2, 3)):
    spatial = draw(st.sampled_from(dimensions))
    groups = draw(st.integers(1, 3))
    inputs, outputs = groups * draw(st.integers(1, 3)), groups * draw(st.integers(1, 3))
    each = [draw(st.integers(1, 3)) for _ in range(spatial)]
    stride = [draw(st.integers(1, 3)) for _ in range(spatial)]
    dilation = [draw(st.integers(1, 2)) for _ in range(spatial)]
    size = [k * d + draw(st.integers(1, 4)) for k, d in zip(each, dilation, strict=True)]
    return spatial, groups, inputs, outputs, each, stride, dilation, size


@drawn(
    convolutions(),
    BATCH,
    st.booleans(),
    st.sampled_from(["zeros", "circular", "reflect", "replicate"]),
    SEEDS,
    count=60,
)
def test_convolution(drawn, batch, bias, mode, seed):
    spatial, groups, inputs, outputs, kernel, stride, dilation, size = drawn
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[spatial - 1]
    settings = {"stride": stride, "dilation": dilation, "groups": groups, "bias": bias, "padding_mode": mode}
    conv = kind(inputs, outputs, kernel, padding=1, **settings).double()
    check_rule(conv, random(batch, inputs, *size, seed=seed), seed=seed)


@drawn(BATCH, st.sampled_from(["same", "valid"]), st.sampled_from(["zeros", "reflect"]), st.integers(1, 4), SEEDS)
def test_convolution_with_padding_by_name(batch, padding, mode, kernel, seed):
    conv = nn.Conv2d(2, 4, (kernel, 2), padding=padding, padding_mode=mode, groups=2).double()
    check_rule(conv, random(batch, 2, 6, 5, seed=seed), seed=seed)


@drawn(BATCH, st.integers(1, 8), st.integers(1, 2), SEEDS)
def test_depthwise_convolution_with_multiplier(batch, channels, multiplier, seed):
    conv = nn.Conv2d(channels, channels * multiplier, 3, padding=1, groups=channels).double()
    check_rule(conv, random(batch, channels, 5, 4, seed=seed), seed=seed)


@drawn(convolutions(), BATCH, st.booleans(), st.integers(0, 1), SEEDS, count=50)
def test_transposed_convolution(drawn, batch, bias, padding, seed):
    spatial, groups, inputs, outputs, kernel, stride, dilation, size = drawn
    kind = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[spatial - 1]
    extra = [min(1, max(s, d) - 1) for s, d in zip(stride, dilation, strict=True)]
    settings = {"stride": stride, "dilation": dilation, "groups": groups, "bias": bias, "output_padding": extra}
    conv = kind(inputs, outputs, kernel, padding=padding, **settings).double()
    size = [n + padding for n in size]  # something is left of the smallest
    check_rule(conv, random(batch, inputs, *size, seed=seed), seed=seed)


def test_transposed_convolution_with_output_size_given():
    conv = nn.ConvTranspose2d(3, 2, 3, stride=2).double()
    check_rule(conv, random(2, 3, 4, 4, seed=1), output_size=(10, 9))


@drawn(BATCH, st.integers(1, 6), st.integers(2, 7), st.booleans(), SEEDS)
def test_embedding(batch, length, entries, padded, seed):
    tokens = torch.randint(0, entries, (batch, length), generator=torch.Generator().manual_seed(seed))
    check_rule(nn.Embedding(entries, 3, padding_idx=1 if padded else None).double(), tokens, seed=seed)


def shaken(norm: nn.Module, seed: int) -> nn.Module:
    """A norm whose parameters and running statistics are not the ones it was born with."""
    norm = norm.double()
    for i, value in enumerate([*norm.parameters(), *norm.buffers()]):
        if value.is_floating_point():
            value.data.copy_(random(*value.shape, seed=seed + i).abs() + 0.5)
    return norm


@drawn(st.integers(2, 4), st.integers(1, 4), st.integers(0, 2), st.booleans(), SEEDS)
def test_batch_norm_in_both_modes(batch, channels, spatial, training, seed):
    kind = (nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d)[spatial]
    norm = shaken(kind(channels), seed).train(training)
    check_rule(norm, random(batch, channels, *(3,) * spatial, seed=seed), seed=seed)


@drawn(BATCH, st.integers(1, 3), st.integers(1, 2), SEEDS)
def test_group_norm(batch, groups, per_group, seed):
    norm = shaken(nn.GroupNorm(groups, groups * per_group), seed)
    check_rule(norm, random(batch, groups * per_group, 3, 2, seed=seed), seed=seed)


@drawn(BATCH, st.lists(st.integers(1, 3), max_size=2), st.booleans(), st.sampled_from([(4,), (2, 3)]), SEEDS)
def test_layer_norm(batch, positions, bias, shape, seed):
    norm = shaken(nn.LayerNorm(shape, bias=bias), seed)
    check_rule(norm, random(batch, *positions, *shape, seed=seed), seed=seed)


@drawn(BATCH, st.lists(st.integers(1, 3), max_size=2), st.sampled_from([(4,), (2, 3)]), SEEDS)
def test_rms_norm(batch, positions, shape, seed):
    check_rule(shaken(nn.RMSNorm(shape), seed), random(batch, *positions, *shape, seed=seed), seed=seed)


@drawn(BATCH, st.integers(1, 4), st.sampled_from([1, 2]), st.booleans(), SEEDS)
def test_self_attention_module(batch, length, heads, bias, seed):
    attention = nn.MultiheadAttention(4, heads, bias=bias, batch_first=True).double()
    x = random(batch, length, 4, seed=seed)
    check_rule(attention, x, x.clone(), x.clone(), seed=seed)


def test_cross_attention_with_masks_and_batch_second():
    attention = nn.MultiheadAttention(4, 2).double()
    query, key = random(3, 2, 4, seed=1), random(5, 2, 4, seed=2)
    mask = torch.zeros(3, 5, dtype=torch.bool).index_fill_(1, torch.tensor([4]), True)
    check_rule(attention, query, key, key.clone(), batch_axis=1, attn_mask=mask, need_weights=False)


def test_key_padding_mask():
    attention = nn.MultiheadAttention(4, 2, batch_first=True).double()
    x = random(3, 5, 4, seed=1)
    padding = torch.arange(5) >= torch.tensor([5, 3, 4])[:, None]
    check_rule(attention, x, x.clone(), x.clone(), key_padding_mask=padding, need_weights=False)


class LayerScale(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.linspace(0.5, 1.5, width))
        self.temperature = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * self.gamma) / self.temperature


@drawn(BATCH, st.integers(1, 3), SEEDS)
def test_a_module_without_a_rule_is_scored_by_forward_mode(batch, length, seed):
    check_rule(LayerScale(4).double(), random(batch, length, 4, seed=seed), seed=seed)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Linear(3, 2), (0, 3)),
        (nn.Linear(3, 2), (0, 5, 3)),
        (nn.Conv2d(4, 4, 3, groups=2), (0, 4, 5, 5)),
        (nn.ConvTranspose2d(4, 2, 3), (0, 4, 5, 5)),
        (nn.LayerNorm(3), (0, 2, 3)),
    ],
)
def test_an_empty_batch_gives_empty_scores(module, shape):
    x = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    layers = select_layers(nn.ModuleDict({"m": module.double()}))
    with Capture(layers) as capture:
        module(x).sum().backward()
    (call,), dims = capture.calls, layers[0].shape.dims
    rule = call.rule
    assert isinstance(rule, Rule)
    assert rule.dots(call, torch.ones(3, *dims, dtype=torch.float64)).shape == (0, 3)
    assert rule.dots(call, torch.ones(1, *dims, dtype=torch.float64)).shape == (0, 1)
    assert rule.norm2(call).shape == (0,)
    assert rule.materialise(call).shape == (0, *dims)


@pytest.mark.parametrize(
    ("module", "shape", "limit", "size"),
    [
        (nn.Conv2d(3, 5, 3), (4, 3, 6, 6), "contractions.CHUNK_BYTES", 1000),  # one example at a time
        (nn.Linear(7, 6), (4, 3, 7), "contractions.CHUNK_BYTES", 1000),
        (nn.Conv2d(4, 6, 3, groups=2), (5, 4, 6, 6), "affine.PATCH_BYTES", 8 * 2800),  # four, and the last alone
        (nn.Conv2d(4, 5, 3, padding=1, padding_mode="circular"), (5, 4, 6, 6), "affine.PATCH_BYTES", 8 * 2800),  # two
    ],
)
def test_a_batch_in_slices_gives_the_gradients_of_the_whole_one(monkeypatch, module, shape, limit, size):
    monkeypatch.setattr(f"sgoif.gradients.{limit}", size)
    check_rule(module.double(), random(*shape, seed=3))


def test_rules_are_registered_once_and_by_type():
    assert nn.Conv2d in registered_types()
    with pytest.raises(RegistryError, match="Conv2d is served by ConvRule"):
        register(nn.Conv2d, rule_for(nn.Linear(1, 1)))


class Doubled(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def test_a_subclass_with_its_own_forward_is_not_taken_for_its_base():
    assert rule_for(Doubled(2, 2)) == "Doubled overrides the forward of Linear"
    check_rule(Doubled(3, 2).double(), random(3, 3, seed=5))  # forward mode gets it right


def test_a_wrong_rule_is_caught_by_the_conformance_check(monkeypatch):
    from sgoif.gradients import affine

    # The classic slip with groups: the first group's patches serve all of them.
    right = affine.ConvRule.input_rows

    def first_group_only(self, call):
        rows = right(self, call)
        return rows[:, :1].expand_as(rows)

    monkeypatch.setattr(affine.ConvRule, "input_rows", first_group_only)
    with pytest.raises(AssertionError, match="relative error"):
        check_rule(nn.Conv2d(4, 4, 3, groups=2).double(), random(2, 4, 5, 5, seed=1))
