"""Scorers of real networks: what they see, what they leave alone, what they keep."""

import copy
import random

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sgoif
from sgoif.errors import SgoifError
from sgoif.ood import OodScorer
from sgoif.run import Run
from sgoif.tables import MemoryTables
from tests.cases import ResidualNet, TransformerNet


def pictures(count, seed=0, scale=1.0):
    return scale * torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def network(kind=ResidualNet, **settings):
    torch.manual_seed(0)
    return kind(**settings)


@pytest.fixture(scope="module")
def scorer():
    return OodScorer.fit(network(), pictures(200))


def test_far_pictures_raise_alarms_and_usual_ones_do_not(scorer):
    limit = scorer.threshold(0.05)
    assert (scorer(pictures(100, 1, scale=5.0)) > limit).mean() > 0.9
    assert (scorer(pictures(1000, 2)) > limit).mean() < 0.15  # 100 kept scores: 0.05 ± 0.022


def test_real_digits_raise_alarms_at_the_promised_rate_and_their_negatives_more():
    digits = load_digits()
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))  # they come writer by writer
    images, labels = torch.tensor(digits.images).float()[order, None] / 16, torch.tensor(digits.target)[order]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[:500]), labels[:500]).backward()
        optimizer.step()
    scorer = OodScorer.fit(model, images[500:1100])
    fresh, negatives = scorer(images[1100:]), scorer(1 - images[1100:])
    for rate in (0.05, 0.2):
        spread = (rate * (1 - rate) * (1 / 300 + 1 / len(fresh))) ** 0.5  # of 300 kept scores, and of those counted
        assert abs((fresh > scorer.threshold(rate)).mean() - rate) < 3 * spread
    assert (negatives > scorer.threshold(0.05)).mean() > 0.95


@pytest.mark.parametrize("batch_size", [1, 7, 200])
def test_the_batch_size_does_not_matter(batch_size):
    model, images = network(), pictures(120)
    whole = OodScorer.fit(model, images)
    other = OodScorer.fit(model, images, batch_size=batch_size)
    # float32 convolutions of other batch sizes differ in the last bits, and logs and spreads magnify these
    np.testing.assert_allclose(other(images), whole(images), rtol=1e-3, atol=1e-4)


def test_layers_are_pooled_over_positions_and_the_head_is_not_one_of_them(scorer):
    assert scorer.layers == ["stem", "conv2", "shortcut"]
    model, images = scorer.model, pictures(5, 3)
    given = []
    handle = model.conv2.register_forward_pre_hook(lambda _m, args: given.append(args[0].mean((2, 3))))
    model.eval()
    with torch.no_grad():
        model(images)
    handle.remove()
    moved = pictures(5, 3).roll(1, 0)
    np.testing.assert_allclose(scorer(moved), np.roll(scorer(images), 1), rtol=1e-4)
    leverage = scorer.rule.hidden["conv2"]
    expected = ((given[0].double() - leverage.mean) @ leverage.whitener).square().sum(1)
    torch.testing.assert_close(leverage.of(given[0]), expected)


@pytest.mark.parametrize("attention", ["module", "linear"])
def test_a_transformer_is_pooled_over_tokens(attention):
    model = network(TransformerNet, attention=attention)
    scorer = OodScorer.fit(model, pictures(120))
    assert {"patch", "mlp.0", "mlp.2"} <= set(scorer.layers) and "fc" not in scorer.layers
    assert (scorer(pictures(50, 1, scale=6.0)) > scorer.threshold(0.1)).mean() > 0.9


def test_a_frozen_model_can_be_judged():
    model = network().requires_grad_(False)
    assert np.isfinite(OodScorer.fit(model, pictures(80))(pictures(3, 1))).all()


@pytest.mark.parametrize("is_training", [True, False])
def test_the_model_is_left_as_found(is_training):
    model = network().train(is_training)
    model.norm2.eval()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = copy.deepcopy(model.state_dict()), [p.grad.clone() for p in model.parameters()]
    modes = [module.training for module in model.modules()]
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    loader = DataLoader(TensorDataset(pictures(100)), batch_size=30, shuffle=True)
    scorer = OodScorer.fit(model, loader)
    scorer(loader)
    scorer.table(loader)
    assert all(torch.equal(value, before[0][name]) for name, value in model.state_dict().items())
    assert all(torch.equal(p.grad, kept) for p, kept in zip(model.parameters(), before[1], strict=True))
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[2]
    assert (np.random.get_state()[1] == states[1]).all()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_the_table_has_ids_and_says_what_is_an_alarm(scorer):
    images = torch.cat([pictures(20, 4), pictures(5, 5, scale=8.0)])
    data = sgoif.with_ids(TensorDataset(images, torch.zeros(25)), ids=[f"p{i}" for i in range(25)])
    table = scorer.table(data, false_alarm_rate=0.1).to_pydict()
    assert set(table["id"][:5]) == {f"p{i}" for i in range(20, 25)} and all(table["flag"][:5])
    assert all(0 <= score < 1 for score in table["score"]) and table["raw_score"] == sorted(table["raw_score"])[::-1]
    by_id = dict(zip(table["id"], table["raw_score"], strict=True))
    np.testing.assert_allclose([by_id[f"p{i}"] for i in range(25)], scorer(images))


def test_a_scorer_survives_its_file_and_refuses_other_weights(scorer, tmp_path):
    path = tmp_path / "scorer.safetensors"
    scorer.save(path)
    again = OodScorer.load(path, network())
    images = pictures(10, 6)
    np.testing.assert_array_equal(again(images), scorer(images))
    assert again.threshold(0.05) == scorer.threshold(0.05)
    other = network()
    with torch.no_grad():
        other.fc.bias += 1
    with pytest.raises(SgoifError, match="weights are not those"):
        OodScorer.load(path, other)
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(SgoifError, match="cannot be read"):
        OodScorer.load(path, network())
    with pytest.raises(SgoifError, match="there is no scorer"):
        OodScorer.load(tmp_path / "none", network())


def test_a_run_knows_the_head():
    run = Run({"head": "fc"}, MemoryTables({}))
    found = run.ood_scorer(network(), (pictures(100), torch.zeros(100)), base="energy")
    assert found(pictures(4)).shape == (4,)


def test_mistakes_are_named():
    with pytest.raises(SgoifError, match="40 images at least"):
        OodScorer.fit(network(), pictures(10))
    with pytest.raises(SgoifError, match="a tensor, a dataset or a DataLoader"):
        OodScorer.fit(network(), 7)
    with pytest.raises(SgoifError, match="no linear layer or convolution 'nope'"):
        OodScorer.fit(network(), pictures(50), head="nope")
    with pytest.raises(SgoifError, match="softmax"):
        OodScorer.fit(nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.Softmax(1)), pictures(50))
