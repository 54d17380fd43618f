"""Ids: of any kind, repeated, and in buffers that the loop uses again."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

import sgoif
from sgoif.errors import SgoifError
from sgoif.influence import HoldOut
from sgoif.inputs.ids import ids_of
from sgoif.records import VisitFlag
from tests.training.loops import data, fresh, take_step, watch


@pytest.mark.parametrize("ids", ["int list", "strings", "numpy"])
def test_ids_of_any_kind_come_back_as_given(ids):
    (pixels, labels), holdout = data(num=12)
    names = {
        "int list": [10**12 + i for i in range(12)],
        "strings": [f"shard/{i:03d}.jpg" for i in range(12)],
        "numpy": np.arange(100, 112),
    }[ids]
    monitor = watch(fresh(), holdout, train_size=12)
    for _ in range(6):
        take_step(monitor, names, pixels, labels)
    run = monitor.close()
    assert sorted(run.table["id"].tolist()) == sorted(np.asarray(names).tolist())
    assert (run.table["n_visits"] == 6).all()


def test_repeated_ids_in_one_step_are_one_visit_also_where_one_of_them_is_not_finite():
    (pixels, labels), holdout = data(num=12)
    broken = pixels.clone()
    broken[1] = float("nan")
    monitor = watch(fresh(), holdout, train_size=12)
    for step in range(8):
        take_step(monitor, [0, 0, *range(1, 11)], broken if step == 5 else pixels, torch.zeros_like(labels))
    run = monitor.close()
    assert len(run.table["id"]) == 11 and (run.table["n_visits"] == 8).all()
    assert np.isfinite(run.table["loss"]).all() and np.isfinite(run.table["harm"]).all()
    flags = run.visits["flags"].astype(int)
    assert ((flags & VisitFlag.REPEATED) > 0).sum() == 8


def test_ids_and_labels_may_be_reused_by_the_loop():
    train_set, holdout = data()
    pixels, labels = train_set
    model = fresh()
    monitor = watch(model, holdout)
    ids, given = torch.arange(48), labels.clone()
    for _ in range(2):
        with monitor.step(ids, given):
            F.cross_entropy(model(pixels), labels).backward()
        ids.fill_(-1), given.fill_(0)
        ids.copy_(torch.arange(48)), given.copy_(labels)
    ids.fill_(-1), given.fill_(0)
    table = monitor.close().table
    assert sorted(table["id"].tolist()) == list(range(48))
    assert (table["given_label"][np.argsort(table["id"])] == labels.numpy()).all()


def test_both_sides_of_a_split_have_the_ids_of_the_whole_dataset():
    pixels, labels = data(num=64)[0]
    train_set, held = sgoif.split(TensorDataset(pixels, labels), fraction=0.3)
    trained, held_out = ids_of(train_set), HoldOut(held).ids
    assert sorted([*trained, *held_out]) == list(range(64)) and len(held_out) > 5
    assert HoldOut(sgoif.with_ids(held)).ids == list(held_out)
    by_hand = list(held_out)
    torch.testing.assert_close(HoldOut(held).labels, labels[by_hand])
    named = sgoif.with_ids(TensorDataset(pixels, labels), ids=[f"{i}.png" for i in range(64)])
    assert set(HoldOut(sgoif.split(named, fraction=0.3)[1]).ids) < set(named.ids)


WRONG = {
    "float": (torch.arange(12).float(), r"got float32; pass them as integers \(ids.long\(\)\)"),
    "column": (torch.arange(12)[:, None], r"got shape \(12, 1\); pass ids\[:, 0\]"),
    "bool": (torch.zeros(12, dtype=torch.bool), "got bool; a mask is no id"),
    "bytes": ([b"a"] * 12, "decode bytes to strings"),
    "none": ([None] * 12, "got None"),
    "tuples": ([("a", 1)] * 12, "got shape"),
    "objects": ([object()] * 12, "must be integers or strings"),
    "ragged": ([[1], [1, 2]] * 6, "integers or strings"),
    "kinds": ([1, "a"] * 6, "got both in one step"),
    "too large": ([2**63 + i for i in range(12)], "64 signed bits"),
    "one far too large": ([2**64, *range(11)], "64 signed bits"),
    "uint64": (np.full(12, 2**63, np.uint64), "64 signed bits"),
    "too few": (list(range(11)), "got 11 ids for 12 targets"),
    "NUL": ([f"{i}\0" for i in range(12)], "NUL character"),
    "bfloat16": (torch.arange(12).bfloat16(), "ids must be integers or strings"),
    "a number": (5, "must be a vector"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_id_is_refused_on_the_first_step_with_the_cure(name):
    """Before, most of these ended with no example in the run and one warning."""
    ids, text = WRONG[name]
    (pixels, labels), holdout = data(num=12)
    model = fresh()
    monitor = watch(model, holdout, train_size=12)
    with pytest.raises(SgoifError, match=text), monitor.step(ids, labels):
        F.cross_entropy(model(pixels), labels).backward()
    assert all(p.grad is not None for p in model.parameters())


def test_ids_that_stay_on_a_device_are_checked_by_their_kind_alone():
    from sgoif.training.step_ids import StepIds

    ids = StepIds()
    assert ids.read(torch.zeros(4, dtype=torch.long, device="meta"), 4).device.type == "meta"  # where a wait raises
    with pytest.raises(SgoifError, match="got float32"):
        ids.read(torch.zeros(4, device="meta"), 4)
    with pytest.raises(SgoifError, match=r"got shape \(4, 1\)"):
        ids.read(torch.zeros(4, 1, dtype=torch.long, device="meta"), 4)


def test_a_lookup_does_not_decide_what_an_empty_index_holds():
    from sgoif.evidence import IdIndex

    index = IdIndex()
    index.rows(["a"])
    assert index.add([1, 2]).tolist() == [0, 1]
