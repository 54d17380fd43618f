"""Ids in items of any form, and the hold-out that is cut off by them."""

import logging

import datasets
import numpy as np
import pytest
import torch
from torch.utils.data import Subset, TensorDataset

import sgoif
from sgoif.errors import SgoifError


def test_a_dictionary_holds_its_id_under_a_key():
    items = [{"pixel_values": i, "labels": 0} for i in range(4)]
    kept, held = sgoif.split(items, fraction=0.5)
    assert {item["id"] for part in (kept, held) for item in sgoif.with_ids(part)} == {0, 1, 2, 3}
    assert sgoif.with_ids(items, ["a", "b", "c", "d"])[2] == {"pixel_values": 2, "labels": 0, "id": "c"}
    assert items[2] == {"pixel_values": 2, "labels": 0}


def counts_of(held, labels):
    return np.bincount([int(labels[i]) for i in held.indices], minlength=int(max(labels)) + 1)


def rare_nine():
    labels = np.concatenate([np.repeat(np.arange(9), 178), np.full(12, 9)])
    return TensorDataset(torch.zeros(len(labels), 1), torch.from_numpy(labels)), labels


def test_every_class_is_held_out_also_a_rare_one():
    dataset, labels = rare_nine()
    train_set, held = sgoif.split(dataset)
    counts = counts_of(held, labels)
    assert (counts[:9] >= 20).all()
    assert counts[9] == 4  # a third of 12
    assert sorted(train_set.indices + held.indices) == list(range(len(labels)))
    assert sgoif.split(dataset)[1].indices == held.indices
    # large classes are cut by their hash alone, as without labels
    alone = sgoif.split([0] * len(labels))[1].indices
    assert set(alone) <= set(held.indices)


def test_classes_with_few_held_out_are_named(caplog):
    dataset, _ = rare_nine()
    dataset.classes = [f"digit-{i}" for i in range(10)]
    with caplog.at_level(logging.WARNING):
        sgoif.split(dataset)
    assert "1 of 10 classes have fewer than 5 held-out examples: digit-9 (4)." in caplog.text
    caplog.clear()
    sgoif.split([0] * 60, labels=["cat"] * 40 + ["dog"] * 17 + ["fox"] * 2 + ["cow"])
    assert "2 of 4 classes have fewer than 5 held-out examples: cow (0), fox (1)." in caplog.text


def sources_of_labels(labels):
    class Listed(list):
        targets = labels.tolist()

    pixels = torch.zeros(len(labels), 1)
    table = datasets.Dataset.from_dict({"label": labels.tolist()})
    yield "targets", Listed([0] * len(labels)), {}
    yield "subset", Subset(TensorDataset(pixels, torch.from_numpy(labels)), range(len(labels))), {}
    yield "hugging face", table, {}
    yield "with ids", sgoif.with_ids(table), {}
    yield "argument", [0] * len(labels), {"labels": labels}


def test_labels_are_found_without_reading_an_item():
    dataset, labels = rare_nine()
    expected = sgoif.split(dataset)[1].indices
    for name, source, more in sources_of_labels(labels):
        assert sgoif.split(source, **more)[1].indices == expected, name


def test_a_given_fraction_is_taken_of_every_class():
    dataset, labels = rare_nine()
    held = sgoif.split(dataset, fraction=0.05)[1]
    counts = counts_of(held, labels)
    assert (counts[:9] >= 9).all()
    assert counts[9] >= 1
    assert len(held) < 0.1 * len(labels)


def test_groups_stay_whole_and_never_take_most_of_a_class():
    labels = np.array([0] * 300 + [1] * 30 + [2] * 8)
    groups = [i // 6 for i in range(300)] + [100 + i // 3 for i in range(30)] + [200] * 8
    train_set, held = sgoif.split([0] * len(labels), labels=labels, groups=groups)
    assert not {groups[i] for i in train_set.indices} & {groups[i] for i in held.indices}
    counts = counts_of(held, labels)
    assert counts[0] >= 20
    assert 10 <= counts[1] <= 15
    assert counts[2] in (0, 8)  # one group, which goes by its hash alone


def test_labels_of_another_length_are_refused():
    with pytest.raises(SgoifError, match="got 3 labels for 9 examples"):
        sgoif.split([0] * 9, labels=[0, 1, 2])
