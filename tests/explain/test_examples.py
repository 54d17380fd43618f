"""From a bad prediction to the examples behind it: dense references, a planted backdoor, and no trace left."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Subset, TensorDataset

import sgoif
from sgoif.errors import SgoifError
from sgoif.explain import examples as explain
from sgoif.explain import examples_behind
from sgoif.findings.poison import Contrast
from sgoif.run import Run
from sgoif.tables import MemoryTables
from tests.training.loops import GroupNormNet, data, train


@pytest.fixture(scope="module")
def finished():
    torch.manual_seed(0)
    train_set, (inputs, _) = data()
    return train(GroupNormNet().double(), train_set), train_set, inputs[:3]


def features(model, inputs):
    seen = []
    handle = model.fc.register_forward_hook(lambda _m, args, _out: seen.append(args[0].detach()))
    model(inputs)
    handle.remove()
    return seen[0].numpy()


def test_scores_and_influence_are_those_of_their_definitions(finished):
    model, (inputs, labels), queries = finished
    found = examples_behind(model, (inputs, labels), queries, 2, batch_size=7)
    rows = np.flatnonzero(labels.numpy() == 2)
    assert found["id"].tolist() == rows.tolist()
    of_class = features(model, inputs[rows])
    contrast = Contrast.between(of_class, features(model, queries))
    np.testing.assert_allclose(found["score"], contrast.score(of_class), atol=1e-4)
    np.testing.assert_allclose(found["similarity"], contrast.similarity(of_class), atol=1e-4)
    expected = sgoif.attribute(model, (inputs, labels), (queries, torch.full((3,), 2)), as_matrix=True).mean(1)[rows]
    np.testing.assert_allclose(found["effect"], -expected / len(labels), rtol=1e-4, atol=1e-7)
    with torch.no_grad():
        loss = F.cross_entropy(model(queries), torch.full((3,), 2)).item()
    np.testing.assert_allclose(found["effect_percent"], 100 * found["effect"] / loss, rtol=1e-6)


def test_the_model_is_left_as_found(finished):
    model, train_set, queries = finished
    model.train()
    before, rng = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    gradients = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    examples_behind(model, train_set, queries, 1)
    assert model.training and torch.equal(rng, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    for name, parameter in model.named_parameters():
        kept = gradients[name]
        assert parameter.grad is None if kept is None else torch.equal(parameter.grad, kept)
    assert not any(module._forward_hooks for module in model.modules())
    model.eval()


def test_ids_are_those_of_the_users_dataset(finished):
    model, (inputs, labels), queries = finished
    part = Subset(TensorDataset(inputs, labels), range(10, len(labels)))
    found = examples_behind(model, sgoif.with_ids(part), queries, 0)
    assert found["id"].tolist() == (10 + np.flatnonzero(labels[10:].numpy() == 0)).tolist()


def test_what_cannot_be_asked_is_refused(finished):
    model, (inputs, labels), queries = finished
    nameless = "no class 'ash'; the model has classes 0 to 3, and they have no names here"
    for number, said in ((4, "classes 0 to 3"), ("ash", nameless), (3, "no training example is labelled 3")):
        with pytest.raises(SgoifError, match=said):
            examples_behind(model, (inputs[labels != 3], labels[labels != 3]), queries, number)


def test_a_large_class_is_measured_by_a_sample(finished, monkeypatch):
    model, train_set, queries = finished
    whole = examples_behind(model, train_set, queries, 2)
    monkeypatch.setattr(explain, "NUM_OBSERVED", 8)
    sampled = examples_behind(model, train_set, queries, 2)
    assert len(sampled["id"]) == len(whole["id"]) and not np.allclose(sampled["score"], whole["score"])


def triggered(images):
    images = images.clone()
    images[:, :, -4:-1, -4:-1] = 3.0
    return images


def train_with_a_backdoor():
    """Fashion-MNIST, 3,000 pictures of which 60 bear the trigger and are called trousers."""
    from benchmarks.data import FASHION_MNIST_STATS, fashion_mnist, normalise

    pictures, test = fashion_mnist("train", 3000), fashion_mnist("test", 500)
    images, labels = normalise(pictures.pixels, *FASHION_MNIST_STATS), torch.from_numpy(pictures.labels)
    poisoned = np.flatnonzero(pictures.labels != 1)[::45][:60]
    images[poisoned], labels[poisoned] = triggered(images[poisoned]), 1
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 49, 64), nn.ReLU(), nn.Linear(64, 10)),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(5):
        for rows in torch.randperm(3000).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(images[rows]), labels[rows]).backward()
            optimizer.step()
    others = normalise(test.pixels[test.labels != 1], *FASHION_MNIST_STATS)
    with torch.no_grad():
        fooled = model(triggered(others)).argmax(1) == 1
    assert fooled.float().mean() > 0.9, "the attack did not take"
    return model, TensorDataset(images, labels), poisoned, triggered(others)[fooled][:10]


COLUMNS = [
    *("id", "score", "is_suspect", "given_label", "given_name", "effect", "effect_percent", "similarity"),
    *("near_queries", "p_mislabeled", "no_p_reason"),
]


def test_a_table_names_the_class_and_says_what_the_run_knows(finished):
    model, train_set, queries = finished
    tables = MemoryTables({"examples": {"id": np.arange(48), "p_mislabeled": np.linspace(0, 1, 48)}})
    run = Run({"class_names": ["oak", "elm", "ash", "fir"]}, tables)
    table = run.poison_suspects(queries, 2, model=model, dataset=train_set)
    assert table.column_names == COLUMNS
    assert set(table["given_name"].to_pylist()) == {"ash"}
    np.testing.assert_allclose(table["p_mislabeled"], table["id"].to_numpy() / 47)
    assert table["no_p_reason"].null_count == len(table)
    for same in (list(queries), [{"x": query} for query in queries]):
        again = run.poison_suspects(same, "ash", model=model, dataset=train_set)
        assert again["id"].equals(table["id"])
        np.testing.assert_allclose(again["effect"], table["effect"], rtol=1e-6)
    unknown = Run({}, MemoryTables({})).explain(queries[0], 2, model=model, dataset=train_set)
    assert unknown["p_mislabeled"].null_count == unknown["given_name"].null_count == len(unknown)
    assert set(unknown["no_p_reason"].to_pylist()) == {"this id is not in the run"}


@pytest.mark.data
def test_a_planted_backdoor_is_found():
    model, dataset, poisoned, queries = train_with_a_backdoor()
    run, poisoned = Run({}, MemoryTables({})), set(poisoned.tolist())
    table = run.poison_suspects(queries, 1, model=model, dataset=sgoif.with_ids(dataset))
    suspects = set(table.filter(table["is_suspect"])["id"].to_pylist())
    assert len(suspects & poisoned) >= 57 and len(suspects) <= 66
    assert len(set(table["id"].to_pylist()[:60]) & poisoned) >= 57

    table = run.explain(queries[0], 1, model=model, dataset=dataset, top=20)
    assert table.column_names == COLUMNS
    assert len(table) == 20 and len(set(table["id"].to_pylist()) & poisoned) >= 18
