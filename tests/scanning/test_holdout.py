"""The hold-out of a scan: the same whatever the order, every class in it, both folds of the canaries."""

import numpy as np
import pytest

from sgoif.errors import SgoifError
from sgoif.evidence import fold_of
from sgoif.scanning.holdout import choose_holdout, read_verified

IDS = np.array([f"class{i % 3}/{i}.png" for i in range(900)])
LABELS = np.arange(900) % 3


def test_the_choice_depends_on_the_id_alone_and_covers_every_class_and_fold():
    held = choose_holdout(IDS, LABELS, 3)
    assert held.sum() == 90
    assert (np.bincount(LABELS[held]) == 30).all()
    assert min(np.bincount(fold_of(IDS[held]))) > 25  # calibration needs both folds
    order = np.random.default_rng(0).permutation(900)
    assert set(IDS[order][choose_holdout(IDS[order], LABELS[order], 3)]) == set(IDS[held])


def test_small_classes_give_at_most_half():
    labels = np.where(np.arange(900) < 10, 1, 0)
    held = choose_holdout(IDS, labels, 2)
    assert (held & (labels == 1)).sum() == 5


def test_verified_labels_are_read_by_name_or_number(tmp_path):
    path = tmp_path / "verified.csv"
    path.write_text('id,label\n"class0/0.png",dog\nclass1/1.png,2\nclass2/2.png,\nelsewhere.png,cat\n')
    assert read_verified(path, list(IDS), ("cat", "dog", "fox")) == {0: 1, 1: 2}
    path.write_text("id,label\nclass0/0.png,wolf\n")
    with pytest.raises(SgoifError, match=r"line 2 .* names the class 'wolf'"):
        read_verified(path, list(IDS), ("cat", "dog", "fox"))
    path.write_text("name,label\nx,cat\n")
    with pytest.raises(SgoifError, match="has no column id"):
        read_verified(path, list(IDS), ("cat",))


def test_the_hold_out_of_many_examples_does_not_grow_with_them():
    labels = np.arange(1_200_000) % 1000
    held = choose_holdout(np.arange(1_200_000), labels, 1000)
    assert held.sum() == 20_000 and (np.bincount(labels[held]) == 20).all()
