"""Scorers of real networks: what they see, what they leave alone, what they keep."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sgoif
from sgoif.errors import SgoifError
from sgoif.features.extraction import extract_features
from sgoif.ood import OodScorer
from sgoif.run import Run
from sgoif.tables import MemoryTables
from tests.cases import ResidualNet, TransformerNet
from tests.ood.digits import shuffled_digits, train_network


def pictures(count, seed=0, scale=1.0):
    return scale * torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def network(kind=ResidualNet, **settings):
    torch.manual_seed(0)
    return kind(**settings)


@pytest.fixture(scope="module")
def scorer():
    return OodScorer.fit(network(), pictures(200))


def test_real_digits_raise_alarms_at_the_promised_rate_and_their_negatives_more():
    images, labels = shuffled_digits()
    model = train_network(images[:500], labels[:500])
    scorer = OodScorer.fit(model, images[500:1100])
    fresh, negatives = scorer(images[1100:]), scorer(1 - images[1100:])
    for rate in (0.05, 0.2):
        spread = (rate * (1 - rate) * (1 / 300 + 1 / len(fresh))) ** 0.5  # of 300 kept scores, and of those counted
        assert abs((fresh > scorer.threshold(rate)).mean() - rate) < 3 * spread
    assert (negatives > scorer.threshold(0.05)).mean() > 0.95


def test_the_batch_size_does_not_matter():
    model, images = network(), pictures(120)
    whole = OodScorer.fit(model, images)(images)
    for calibration, batch_size in ((images, 1), (DataLoader(TensorDataset(images), batch_size=7), 256)):
        # float32 convolutions of other batch sizes differ in the last bits, and logs and spreads magnify these
        other = OodScorer.fit(model, calibration, batch_size=batch_size)
        np.testing.assert_allclose(other(calibration), whole, rtol=1e-3, atol=1e-4)


def test_layers_are_pooled_over_positions_and_the_head_is_not_one_of_them(scorer):
    assert scorer.layers == ["stem", "conv2", "shortcut"]
    model, given = scorer.model.eval(), []
    handle = model.conv2.register_forward_pre_hook(lambda _m, args: given.append(args[0].detach().mean((2, 3))))
    seen = extract_features(model, model, pictures(5, 3), "fc", scorer.layers)
    handle.remove()
    torch.testing.assert_close(seen.pooled["conv2"], given[0])


@pytest.mark.parametrize("attention", ["module", "linear"])
def test_a_transformer_is_pooled_over_tokens(attention):
    model = network(TransformerNet, attention=attention)
    scorer = OodScorer.fit(model, pictures(120))
    assert {"patch", "mlp.0", "mlp.2"} <= set(scorer.layers) and "fc" not in scorer.layers
    assert (scorer(pictures(50, 1, scale=6.0)) > scorer.threshold(0.1)).mean() > 0.9


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
        other.stem.weight[0, 0, 0, 0] += 1e-6
    with pytest.raises(SgoifError, match="weights are not those"):
        OodScorer.load(path, other)


def test_a_run_knows_the_head_of_a_model_that_may_be_frozen():
    run = Run({"head": "fc"}, MemoryTables({}))
    frozen = network().requires_grad_(False)
    found = run.ood_scorer(frozen, (pictures(100), torch.zeros(100)), base="energy")
    assert np.isfinite(found(pictures(4))).all()


def test_mistakes_are_named():
    with pytest.raises(SgoifError, match="40 images at least"):
        OodScorer.fit(network(), pictures(10))
    with pytest.raises(SgoifError, match="a tensor, a dataset or a DataLoader"):
        OodScorer.fit(network(), 7)
    with pytest.raises(SgoifError, match="no linear layer or convolution 'nope'"):
        OodScorer.fit(network(), pictures(50), head="nope")
    with pytest.raises(SgoifError, match="softmax"):
        OodScorer.fit(nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.Softmax(1)), pictures(50))
