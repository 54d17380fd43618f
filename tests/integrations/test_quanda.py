"""Our explainer in quanda: its shape and sign, and one of its metrics on it."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

pytest.importorskip("quanda")

from quanda.metrics.downstream_eval import ClassDetectionMetric

import sgoif
from sgoif.integrations.quanda import InfluenceExplainer


def blobs(count, seed):
    """Three classes that a linear map tells apart."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    return 2 * F.one_hot(labels, 5).float() + torch.randn(count, 5, generator=generator) / 2, labels


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    inputs, labels = blobs(60, seed=0)
    for _ in range(100):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    return model


def test_what_helps_a_test_example_is_of_its_class(model):
    train, (inputs, labels) = TensorDataset(*blobs(60, seed=0)), blobs(12, seed=1)
    explainer = InfluenceExplainer(model, train)
    found = explainer.explain(inputs, labels)
    assert found.shape == (12, 60)
    expected = -sgoif.attribute(model, train, (inputs, labels), layers="all", as_matrix=True).T
    torch.testing.assert_close(found, torch.from_numpy(expected.copy()))
    metric = ClassDetectionMetric(model=model, train_dataset=train)
    metric.update(found, labels)
    assert metric.compute()["score"] > 0.9  # of the example that helps most; by chance a third


def test_the_last_checkpoint_is_explained(model, tmp_path):
    train, (inputs, labels) = TensorDataset(*blobs(30, seed=0)), blobs(4, seed=1)
    torch.save(model.state_dict(), tmp_path / "last.pt")
    fresh = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    found = InfluenceExplainer(fresh, train, checkpoints=str(tmp_path / "last.pt")).explain(inputs, labels.tolist())
    torch.testing.assert_close(found, InfluenceExplainer(model, train).explain(inputs, labels))
