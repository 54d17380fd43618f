"""What examples did to anchors, as an audit keeps it: what `attribute` finds, by class, in memory and on disk."""

import numpy as np
import pytest
import torch

import sgoif
from sgoif.errors import SgoifError
from tests.training.loops import GroupNormNet, data, train


@pytest.fixture(scope="module")
def finished():
    torch.manual_seed(0)
    train_set, holdout = data()
    return train(GroupNormNet().double(), train_set), train_set, holdout


def with_names(train_set):
    return sgoif.with_ids(list(zip(train_set[0], train_set[1].tolist())), [f"a/{i}" for i in range(48)])


def test_it_is_the_influence_on_the_mean_loss_of_each_class(finished, tmp_path):
    model, train_set, holdout = finished
    run = sgoif.audit(model, train_set, anchors=holdout, trusted=True, keep_anchors=True, out=str(tmp_path / "run"))
    single = sgoif.attribute(model, train_set, holdout, as_matrix=True)  # tests/explain compares it with dense solves
    expected = np.stack([single[:, (holdout[1] == c).numpy()].mean(1) for c in range(4)], 1)
    ids = run.table["id"]
    # a run holds it in float32
    np.testing.assert_allclose(run.influence(ids), expected[ids], rtol=1e-5, atol=1e-6 * np.abs(expected).max())
    np.testing.assert_allclose(run.influence(ids).mean(1), run.table["harm_solved"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(run.influence([5, 3], [2, 0]), expected[[5, 3]][:, [2, 0]], rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(sgoif.load(tmp_path / "run").influence(ids), run.influence(ids))

    row = run.influence([5])  # one id and one class need no list
    for one in (5, np.int64(5), torch.tensor(5), np.array([5]), torch.tensor([5]), range(5, 6)):
        np.testing.assert_array_equal(run.influence(one), row)
    np.testing.assert_array_equal(run.influence(5, 2), row[:, 2:3])
    named = sgoif.audit(model, with_names(train_set), anchors=holdout, keep_anchors=True)
    np.testing.assert_array_equal(named.influence("a/5"), row)


def test_string_ids_classes_without_holdout_and_what_is_unknown(finished):
    model, train_set, (held, held_labels) = finished
    some = held_labels != 3
    run = sgoif.audit(model, with_names(train_set), anchors=(held[some], held_labels[some]), keep_anchors=True)
    found = run.influence(["a/7", "a/1"])
    assert np.isnan(found[:, 3]).all()
    assert np.isfinite(found[:, :3]).all()
    run.info["class_names"] = ["w", "x", "y", "z"]
    np.testing.assert_array_equal(run.influence(["a/7"], ["y"]), found[:1, 2:3])
    for asked, said in (
        ((["a/7", "b/7"],), r"1 of 2 ids are not in this run: 'b/7'\. .* like 'a/0'"),
        ((5,), r"1 of 1 ids are not in this run: 5\. .* like 'a/0'"),
        ((["a/7"], ["v"]), "no anchor 'v'"),
    ):
        with pytest.raises(SgoifError, match=said):
            run.influence(*asked)
    assert len(run.label_issues()) > 0  # the column is in nobody's way


def test_a_run_without_it_says_how_to_get_it(finished):
    model, train_set, holdout = finished
    with pytest.raises(SgoifError, match="keep_anchors=True"):
        sgoif.audit(model, train_set, anchors=holdout).influence([0])


def test_many_classes_are_refused():
    torch.manual_seed(0)
    train_set, holdout = data(held=70, classes=70)
    model = GroupNormNet(classes=70).double()
    with pytest.raises(SgoifError, match="64 classes"):
        sgoif.audit(model, train_set, anchors=holdout, keep_anchors=True)
