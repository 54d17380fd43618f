"""Class keys: two opinions in one order, shares that are probabilities, and bulk only where both agree."""

import numpy as np
import pytest

from sgoif.errors import SgoifError
from sgoif.evidence import LIKENESS_COLUMNS
from sgoif.findings import keys
from sgoif.findings.keys import LEAST_SHARE, choose_least_share, class_keys, neighbour_labels, with_neighbours
from sgoif.findings.label import NEAR_COLUMNS
from sgoif.tables import MemoryTables


def rows(given, suggested, p, probable=None):
    found = {"given_label": np.array(given), "p_mislabeled": np.array(p, dtype=float)}
    for place, tail in enumerate(("", "_2", "_3")):
        found[f"suggested_label{tail}"] = np.array([row[place] for row in suggested])
        if probable is not None:
            found[f"p_suggested{tail}"] = np.array([row[place] for row in probable], dtype=float)
    return found


def test_a_class_that_all_neighbours_have_gets_a_key_that_the_model_did_not_give_it():
    found = class_keys(rows([0], [[1, 2, 3]], [0.8], [[0.7, 0.05, 0.02]]), np.full((1, 6), 7))
    assert found.labels.tolist() == [[1, 7, 2]]
    np.testing.assert_allclose(found.shares, [[0.56, 0.16, 0.04]])
    assert found.agreeing.tolist() == [0] and not found.in_bulk[0]


def test_shares_are_probabilities_and_the_given_class_has_no_key():
    near = np.array([[0, 0, 0, 1, 1, 4], [5, 5, 5, 5, 5, 5]])
    found = class_keys(rows([0, 5], [[1, 2, 3]] * 2, [0.9, 0.2], [[0.6, 0.2, 0.1], [0.1, 0.06, 0.04]]), near)
    assert not (found.labels == np.array([[0], [5]])).any()
    assert found.shares.sum(1)[0] <= 0.9 and found.shares.sum(1)[1] == pytest.approx(0.2)
    assert (found.shares >= 0).all()


def test_bulk_needs_two_thirds_of_the_neighbours_and_a_probable_suggestion():
    near = np.array([[1, 1, 1, 1, 2, 0], [1, 1, 1, 2, 2, 0], [1] * 6, [1, 1, -1, -1, -1, -1], [-1] * 6])
    probable = [[0.97, 0.01, 0.01], [0.97, 0.01, 0.01], [0.6, 0.1, 0.1], [0.97, 0.01, 0.01], [0.97, 0.01, 0.01]]
    found = class_keys(rows([0] * 5, [[1, 2, 3]] * 5, [0.99, 0.99, 0.8, 0.99, 0.99], probable), near)
    assert found.in_bulk.tolist() == [True, False, False, True, False]
    assert found.num_near.tolist() == [6, 6, 6, 2, 0]


def test_neighbours_that_contradict_the_model_are_not_accepted_in_bulk():
    found = class_keys(rows([0], [[1, 2, -1]], [0.95], [[0.9, 0.05, 0.0]]), np.full((1, 6), 2))
    assert found.labels[0].tolist() == [1, 2, -1] and found.agreeing[0] == 0 and not found.in_bulk[0]
    alone = class_keys(rows([0], [[-1, -1, -1]], [0.95]), np.full((1, 6), 2))
    assert alone.labels[0].tolist() == [2, -1, -1] and alone.agreeing[0] == 6 and not alone.in_bulk[0]


def test_a_run_with_an_order_alone_has_keys_without_shares():
    near = np.array([[1, 1, 1, 1, 4, 4], [4, 4, 4, 4, 4, 1]])
    found = class_keys(rows([0, 0], [[1, 2, 3]] * 2, [0.95, 0.95]), near)
    assert found.labels.tolist() == [[1, 2, 3], [1, 2, 4]]
    assert np.isnan(found.shares).all() and not found.in_bulk.any()
    unknown = class_keys(rows([0, 0], [[1, 2, 3]] * 2, [np.nan, np.nan]), near)
    assert not unknown.in_bulk.any() and np.isnan(unknown.shares).all()


def test_what_nobody_names_is_on_no_key():
    found = class_keys(rows([0], [[-1, -1, -1]], [0.1], [[0, 0, 0]]), np.array([[0, 0, 0, 0, 0, 0]]))
    assert found.labels.tolist() == [[-1, -1, -1]] and not found.in_bulk[0]
    assert class_keys(rows([], [], [], []), np.zeros((0, 6), int)).labels.shape == (0, 3)
    with pytest.raises(SgoifError, match="one row of labels per example"):
        class_keys(rows([0], [[1, 2, 3]], [0.5]), np.zeros(6, int))


def test_many_examples_are_ranked_in_parts(monkeypatch):
    rng = np.random.default_rng(0)
    many = rows(rng.integers(0, 5, 50), rng.integers(0, 9, (50, 3)), rng.random(50), rng.random((50, 3)) / 3)
    near = rng.integers(-1, 9, (50, 6))
    whole = class_keys(many, near)
    monkeypatch.setattr(keys, "_AT_ONCE", 7)
    parts = class_keys(many, near)
    np.testing.assert_array_equal(whole.labels, parts.labels)
    np.testing.assert_array_equal(whole.shares, parts.shares)


def checked(belief, right, wrong=0):
    labels = np.ones((len(belief), 3), np.int64)
    nothing = np.zeros(len(belief), np.int64)
    found = keys.ClassKeys(labels, labels * 0.5, nothing, nothing, np.array(belief), nothing.astype(bool))
    return choose_least_share(found, np.where(right, 1, wrong))


def test_decisions_move_the_threshold_of_bulk():
    assert checked([], []) == LEAST_SHARE
    assert checked([0.9] * 3, [True] * 3) == LEAST_SHARE
    # many below the usual threshold were right: more may be offered
    assert checked([0.9] * 30 + [0.7] * 30, [True] * 60) == 0.7
    # those at the usual threshold were wrong, the surest right: fewer may be offered
    assert checked([0.99] * 30 + [0.9] * 30, [True] * 30 + [False] * 30) == 0.99
    assert checked([0.99] * 30, [False] * 30) > 1
    # a few right decisions lower nothing, nor do those that are undecided
    assert checked([0.7] * 10, [True] * 10) == LEAST_SHARE
    assert checked([0.7] * 60, [False] * 60, wrong=-1) == LEAST_SHARE


def test_labels_of_neighbours_are_in_the_order_of_the_ids():
    words = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, (20, 4), dtype=np.int64)
    words[7] = words[3]
    table = {"id": np.arange(20), "given_label": np.arange(20)} | dict(zip(LIKENESS_COLUMNS, words.T, strict=True))
    found = neighbour_labels(MemoryTables({"examples": table}).sql, [7, 3], count=2)
    assert found.shape == (2, 2) and found[:, 0].tolist() == [3, 7]
    without = {name: values for name, values in table.items() if name not in LIKENESS_COLUMNS}
    assert (neighbour_labels(MemoryTables({"examples": without}).sql, [7, 3]) == -1).all()
    asked = {"id": np.array([7]), "given_label": np.array([7]), "suggested_label": np.array([3])}
    counted = with_neighbours(MemoryTables({"examples": table}).sql, asked)
    assert [int(counted[name][0]) for name in NEAR_COLUMNS] == [1, 0, 6]
    assert with_neighbours(MemoryTables({"examples": without}).sql, asked) == asked
