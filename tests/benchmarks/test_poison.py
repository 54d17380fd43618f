"""The poisoned world is what it says, and every rival finds poison where its own idea holds."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks import data, loops, poison, poisoned


@pytest.fixture
def planted():
    """A class in two groups, 30 of 330 apart from the rest."""
    rng = np.random.default_rng(0)
    features = np.abs(rng.normal(size=(330, 16)))
    features[300:] += 6 * (np.arange(16) < 4)
    return features, np.arange(330) >= 300


def test_the_trigger_is_nine_pixels():
    pixels = np.full((2, 32, 32, 3), 7, np.uint8)
    changed = poisoned.add_trigger(pixels) != pixels
    assert (changed.any(3).sum((1, 2)) == 9).all() and (pixels == 7).all()
    assert changed[:, 28:31, 28:31].all()


@pytest.mark.parametrize(
    "score",
    [
        lambda features, queries: poison.cosine(features, queries),
        lambda features, queries: poison.activation_clustering(features, 0),
        lambda features, queries: poison.spectral_signatures(features),
    ],
    ids=["cosine", "clustering", "signatures"],
)
def test_a_rival_finds_a_group_apart(planted, score):
    features, is_poisoned = planted
    found = score(features, features[is_poisoned][:5])
    assert is_poisoned[np.argsort(-found)[:30]].mean() > 0.9


def test_other_classes_come_last():
    world = SimpleNamespace(labels=torch.zeros(10), is_poisoned=np.arange(10) < 2)
    case = SimpleNamespace(world=world, rows=np.array([0, 1, 2]))
    assert poison.judge(np.array([0.0, -3.0, -5.0]), case) == {"aupr": 100.0, "precision": 100.0}


@pytest.mark.data
def test_the_poisoned_are_of_other_classes_and_bear_the_trigger():
    setup = poisoned.Setup(split="development", examples=2_000, rate=0.01, seed=0)
    world = poisoned.make_world(setup)
    clean = data.development(2_000).train
    rows = np.flatnonzero(world.is_poisoned)
    assert len(rows) == 20 and (clean.labels[rows] != 0).all() and (world.labels[rows] == 0).all()
    before = data.normalise(clean.pixels, *data.CIFAR10_STATS)
    changed = (world.images != before).flatten(1).any(1).numpy()
    np.testing.assert_array_equal(changed, world.is_poisoned)


def test_checkpoints_weigh_by_the_learning_rate_before_them():
    first, middle, last = poison.learning_rates(loops.Recipe(num_epochs=2), 5_000)
    assert 0 < last < middle < 0.2 and last < first < 0.2
