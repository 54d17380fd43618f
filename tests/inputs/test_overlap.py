"""An audit by examples that the model was trained on would call wrong labels right: it is refused where that shows."""

import logging

import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

import sgoif
from sgoif.errors import SgoifError

X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(60) % 3
NAMES = [f"{i}.png" for i in range(60)]
SET = TensorDataset(X, Y)

SHARED = {
    "the same object": ((X, Y), (X, Y), "60 of 60"),
    "the same dataset": (SET, SET, "60 of 60"),
    "a loader over it": (DataLoader(SET, batch_size=8), SET, "60 of 60"),
    "a part of it": (Subset(SET, range(50, 60)), SET, "10 of 10"),
    "parts that meet": (Subset(SET, range(45, 60)), Subset(SET, range(50)), "5 of 15"),
    "a part of a part": (Subset(Subset(SET, range(30, 60)), range(20, 30)), Subset(SET, range(50, 60)), "10 of 10"),
    "with ids": (sgoif.with_ids(Subset(SET, range(50, 60))), sgoif.with_ids(SET), "10 of 10"),
    "slices that meet": ((X[40:], Y[40:]), (X[:45], Y[:45]), "5 of 20"),
    "arrays": ((X.numpy(), Y.numpy()), (X.numpy(), Y.numpy()), "60 of 60"),
    "equal tensors": ((X.clone(), Y.clone()), (X, Y), "60 of 60"),
    "equal ids": ((X[:9] + 1, Y[:9], NAMES[8:17]), (X[:9], Y[:9], NAMES[:9]), r"1 of 9 .* such as '8.png'"),
}

APART = {
    "slices": ((X[40:], Y[40:]), (X[:40], Y[:40])),
    "a split": sgoif.split(SET, fraction=0.3)[::-1],
    "a split with ids": tuple(map(sgoif.with_ids, sgoif.split(SET, fraction=0.3)[::-1])),
    "two sets that count from 0": (sgoif.with_ids(TensorDataset(X + 1, Y)), sgoif.with_ids(SET)),
    "items that count from 0": (TensorDataset(X + 1, Y, torch.arange(60)), TensorDataset(X, Y, torch.arange(60))),
    "other ids": ((X[:9] + 1, Y[:9], NAMES[9:18]), (X[:9], Y[:9], NAMES[:9])),
}


@pytest.mark.parametrize("name", SHARED)
def test_anchors_that_were_trained_on_are_refused(name):
    anchors, dataset, words = SHARED[name]
    with pytest.raises(SgoifError, match=f"{words}.*sgoif.split"):
        sgoif.audit(torch.nn.Linear(4, 3), dataset, anchors=anchors)


@pytest.mark.parametrize("name", APART)
def test_anchors_that_were_held_out_are_not(name, caplog):
    anchors, dataset = APART[name]
    with caplog.at_level(logging.WARNING):
        sgoif.audit(torch.nn.Linear(4, 3), dataset, anchors=anchors)
    assert "same input" not in caplog.text


def test_copies_among_the_anchors_are_told(caplog):
    copies = (torch.cat([X[:40][[3, 7, 7]], X[43:]]), torch.cat([Y[[3, 7, 7]], Y[43:]]))
    with caplog.at_level(logging.WARNING):
        sgoif.audit(torch.nn.Linear(4, 3), (X[:40], Y[:40]), anchors=copies)
    assert "3 of 20 anchors have the same input" in caplog.text


def test_tags_are_refused_alike():
    tags = (torch.rand(60, 3) > 0.5).float()
    with pytest.raises(SgoifError, match="60 of 60"):
        sgoif.audit(torch.nn.Linear(4, 3), (X, tags), anchors=(X, tags), task="multilabel")
