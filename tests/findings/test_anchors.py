"""What examples did to anchors, as an audit keeps it: equal to dense solves, in memory and on disk."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import sgoif
from sgoif.errors import SgoifError
from sgoif.gradients import quiet_eval, select_layers
from sgoif.testing.references import reference_gradients
from tests.training.loops import GroupNormNet, data, train


@pytest.fixture(scope="module")
def finished():
    torch.manual_seed(0)
    train_set, holdout = data()
    return train(GroupNormNet().double(), train_set), train_set, holdout


def head_gradients(model, inputs, labels):
    (head,) = select_layers(model, ["fc"])
    with quiet_eval(model):
        found = reference_gradients(head, lambda: F.cross_entropy(model(inputs), labels, reduction="sum"))
    return found.flatten(1)


def test_it_is_the_influence_on_the_mean_loss_of_each_class(finished, tmp_path):
    model, train_set, (inputs, labels) = finished
    run = sgoif.audit(
        model, train_set, anchors=(inputs, labels), trusted=True, keep_anchors=True, out=str(tmp_path / "run")
    )
    g, h = head_gradients(model, *train_set), head_gradients(model, inputs, labels)
    means = torch.stack([h[labels == c].mean(0) for c in range(4)])
    left, right = _kfac(model, *train_set)
    expected = -(g @ torch.linalg.solve(torch.kron(left, right), means.mT)).numpy()
    ids = run.table["id"]
    # a run holds it in float32
    np.testing.assert_allclose(run.influence(ids), expected[ids], rtol=1e-5, atol=1e-6 * np.abs(expected).max())
    np.testing.assert_allclose(run.influence(ids).mean(1), run.table["harm_solved"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(run.influence([5, 3], [2, 0]), expected[[5, 3]][:, [2, 0]], rtol=1e-5, atol=1e-4)
    again = sgoif.load(tmp_path / "run")
    np.testing.assert_array_equal(again.influence(ids), run.influence(ids))


def _kfac(model, inputs, labels):
    seen = []
    handle = model.fc.register_forward_hook(lambda _m, args, _out: seen.append(args[0].detach()))
    with quiet_eval(model):
        p = model(inputs).detach().softmax(1)
    handle.remove()
    a = torch.cat([seen[0], torch.ones(len(labels), 1, dtype=torch.float64)], 1)
    factors = [side.mT @ side / len(labels) for side in (p - F.one_hot(labels, 4), a)]
    return [f + 0.1 * f.diagonal().mean() * torch.eye(len(f), dtype=f.dtype) for f in factors]


def test_columns_of_attribute_average_to_it(finished):
    model, train_set, holdout = finished
    run = sgoif.audit(model, train_set, anchors=holdout, trusted=True, keep_anchors=True)
    single = sgoif.attribute(model, train_set, holdout, as_matrix=True)
    means = np.stack([single[:, (holdout[1] == c).numpy()].mean(1) for c in range(4)], 1)
    np.testing.assert_allclose(run.influence(list(range(48))), means, rtol=1e-5, atol=1e-4)


def test_string_ids_classes_without_holdout_and_what_is_unknown(finished):
    model, (pixels, labels), (held, held_labels) = finished
    some = held_labels != 3
    named = sgoif.with_ids(list(zip(pixels, labels.tolist())), [f"a/{i}" for i in range(48)])
    run = sgoif.audit(model, named, anchors=(held[some], held_labels[some]), keep_anchors=True)
    found = run.influence(["a/7", "a/1"])
    assert np.isnan(found[:, 3]).all()
    assert np.isfinite(found[:, :3]).all()
    run.info["class_names"] = ["w", "x", "y", "z"]
    np.testing.assert_array_equal(run.influence(["a/7"], ["y"]), found[:1, 2:3])
    with pytest.raises(SgoifError, match=r"1 of 2 ids are not in this run: 'b/7'\. .* like 'a/0'"):
        run.influence(["a/7", "b/7"])
    with pytest.raises(SgoifError, match=r"1 of 1 ids are not in this run: 5\. .* like 'a/0'"):
        run.influence(5)
    with pytest.raises(SgoifError, match="no anchor 'v'"):
        run.influence(["a/7"], ["v"])
    assert len(run.label_issues()) > 0  # the column is in nobody's way


def test_one_id_and_one_class_need_no_list(finished):
    model, train_set, holdout = finished
    run = sgoif.audit(model, train_set, anchors=holdout, keep_anchors=True)
    row = run.influence([5])
    for one in (5, np.int64(5), torch.tensor(5), np.array([5]), torch.tensor([5]), range(5, 6)):
        np.testing.assert_array_equal(run.influence(one), row)
    np.testing.assert_array_equal(run.influence(5, 2), row[:, 2:3])
    named = sgoif.with_ids(list(zip(train_set[0], train_set[1].tolist())), [f"a/{i}" for i in range(48)])
    named = sgoif.audit(model, named, anchors=holdout, keep_anchors=True)
    np.testing.assert_array_equal(named.influence("a/5"), row)


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
