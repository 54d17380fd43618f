from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from benchmarks import data


@pytest.fixture
def images():
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (30, 4, 4, 3), dtype=np.uint8)
    return data.Images(pixels, np.arange(30) % 3, ("a", "b", "c"), np.arange(100, 130))


def test_first_per_class_is_in_order_class_by_class():
    assert data.first_per_class(np.array([1, 0, 1, 1, 0, 2]), 2, 3).tolist() == [1, 4, 0, 2, 5]


def test_a_long_tail_falls_exponentially_and_keeps_the_order():
    labels = np.random.default_rng(0).permutation(np.arange(10).repeat(500))
    pixels = np.zeros((5000, 1, 1, 3), np.uint8)
    tail = data.long_tail(data.Images(pixels, labels, tuple("abcdefghij"), np.arange(5000)))
    assert np.bincount(tail.labels).tolist() == [500, 300, 180, 108, 65, 39, 23, 14, 8, 5]
    assert (np.diff(tail.ids) > 0).all()
    np.testing.assert_array_equal(labels[tail.ids], tail.labels)
    assert (tail.labels == 9).nonzero()[0].size == 5
    np.testing.assert_array_equal(tail.ids[tail.labels == 9], np.flatnonzero(labels == 9)[:5])


def test_as_given_holdout_carries_given_labels(images):
    given = np.roll(images.labels, 1)
    holdout = data.as_given_holdout(images, given, per_class=4)
    assert holdout.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    np.testing.assert_array_equal(given[holdout.ids - 100], holdout.labels)


def test_normalise_matches_the_formula(images):
    mean, std = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
    tensor = data.normalise(images.pixels, mean, std)
    assert tensor.dtype == torch.float32
    expected = ((images.pixels / 255 - np.array(mean)) / np.array(std)).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(tensor.numpy(), expected, atol=1e-6)
    with pytest.raises(ValueError, match="3 channels"):
        data.normalise(images.pixels, (0.5,), (0.5,))


def test_cache_is_filled_once_by_a_full_read(monkeypatch, tmp_path):
    monkeypatch.setenv("SGOIF_CACHE", str(tmp_path / "cache"))
    source = tmp_path / "train.npz"
    source.write_bytes(b"stands for an encoded file")
    pixels = np.arange(24, dtype=np.uint8).reshape(6, 2, 2, 1)
    calls = []

    def decode(count):
        calls.append(count)
        return pixels[:count]

    np.testing.assert_array_equal(data._cached(source, "toy", 2, decode), pixels[:2])
    assert not (tmp_path / "cache").exists()  # a limited read writes nothing
    np.testing.assert_array_equal(data._cached(source, "toy", None, decode), pixels)
    np.testing.assert_array_equal(data._cached(source, "toy", 3, decode), pixels[:3])
    assert calls == [2, None]
    assert len(os.listdir(tmp_path / "cache")) == 1  # no partial file is left


@pytest.mark.data
@pytest.mark.parametrize(("name", "rate"), [("clean", 0.0), ("aggre", 9.01), ("random1", 17.23), ("worst", 40.21)])
def test_human_noise_rates_are_the_published_ones(name, rate):
    stored = data._column(data._file("cifar10", "train_lossless.parquet"), "label")
    assert round(100 * (data.human_labels(name) != stored).mean(), 2) == rate


@pytest.mark.data
def test_cifar100_has_twenty_superclasses_of_five():
    assert data.cifar100("test", limit=3).num_classes == 100
    assert np.bincount(data.cifar100_superclasses()).tolist() == [5] * 20


@pytest.mark.data
@pytest.mark.slow  # decodes all 60,000 images where there is no cache
def test_splits_are_disjoint_and_repeatable():
    development, reported = data.development(), data.reported(20_000, seed=1)
    assert len(development.train) == 20_000
    assert len(development.held) == len(reported.held) == 2_000
    assert development.train.ids.max() < 20_000 <= reported.train.ids.min()
    assert not set(reported.train.ids) & set(reported.held.ids)
    np.testing.assert_array_equal(reported.train.ids, data.reported(20_000, seed=1).train.ids)
    assert not np.array_equal(reported.train.ids, data.reported(20_000, seed=2).train.ids)
    assert np.bincount(development.trusted.labels).tolist() == [100] * 10
    mean, std = data.CIFAR10_STATS
    scaled = data.cifar10("train").pixels.reshape(-1, 3) / np.float32(255)
    np.testing.assert_allclose(scaled.mean(0, dtype=np.float64), mean, atol=6e-5)
    np.testing.assert_allclose(scaled.std(0, dtype=np.float64), std, atol=6e-5)
