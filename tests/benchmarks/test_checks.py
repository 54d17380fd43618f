"""Planted data issues: where they are, how findings are counted, and that no reported set was tuned on."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.checks import compare, tables
from benchmarks.checks.plant import PLANTED, SIZE, Draw, draw
from benchmarks.checks.sets import DEVELOPMENT, REPORTED, Pool
from benchmarks.checks.tools import predict


@pytest.fixture(scope="module")
def pool():
    rng = np.random.default_rng(0)
    labels = np.arange(SIZE + 100) % 5
    rows = rng.standard_normal((SIZE + 100, 80)) + 3 * np.eye(5, 80)[labels]
    pixels = rng.integers(0, 256, (SIZE + 100, 8, 8, 3), dtype=np.uint8)
    foreign = 9 + rng.standard_normal((60, 80))
    return Pool(rows.astype(np.float32), labels, tuple("abcde"), foreign.astype(np.float32), pixels, pixels[:60])


def test_sets_that_are_tuned_on_are_not_reported():
    assert not set(DEVELOPMENT) & set(REPORTED)
    cells = compare.EXPERIMENT.full
    assert {cell["group"] for cell in cells if cell["data"] in REPORTED} == {"reported"}
    assert all(tuple(cell["seed"]) == (1, 2, 3) for cell in cells if cell["group"] == "reported")


def test_issues_of_examples_do_not_share_examples(pool):
    drawn, clean = draw(pool, "examples", 1), draw(pool, "clean", 1)
    parts = [rows for kind, rows in drawn.truth.items() if kind not in ("conflicting_duplicates", "label_errors")]
    rows = np.concatenate([*parts, np.setdiff1d(drawn.truth["label_errors"], drawn.truth["conflicting_duplicates"])])
    assert len(rows) == len(np.unique(rows))
    wrong = np.setdiff1d(drawn.truth["label_errors"], drawn.truth["exact_duplicates"])
    assert (drawn.labels[wrong] != clean.labels[wrong]).all()
    copies = drawn.truth["exact_duplicates"]
    assert all((drawn.features == drawn.features[row]).all(1).sum() >= 2 for row in copies)
    untouched = np.setdiff1d(np.arange(SIZE), rows)
    assert (drawn.labels[untouched] == clean.labels[untouched]).all()


def test_every_other_draw_plants_one_issue_of_the_set_and_repeats_itself(pool):
    for planted in PLANTED.keys() - {"clean"}:
        drawn, again = draw(pool, planted, 1), draw(pool, planted, 1)
        assert drawn.is_planted and not drawn.truth
        assert (again.features == drawn.features).all() and (again.labels == drawn.labels).all()


def test_predictions_fail_where_they_are_to_fail(pool):
    drawn = draw(pool, "weak region", 1)
    is_right = predict(drawn, 1).argmax(1) == drawn.labels
    rest = np.setdiff1d(np.arange(len(drawn.labels)), drawn.failing)
    assert is_right[drawn.failing].mean() < 0.2 and is_right[rest].mean() > 0.8


def test_findings_known_by_hand_are_counted():
    features = np.arange(8, dtype=np.float32)[:, None].repeat(2, 1)
    features[5] = features[4]
    drawn = Draw(
        features, np.zeros(8, np.int64), 2, truth={"exact_duplicates": np.array([5]), "outliers": np.array([1, 2])}
    )
    found = compare.measure(
        {"exact_duplicates": np.array([4, 7]), "outliers": np.array([2, 3]), "dark_pictures": None}, drawn
    )
    assert found["kinds"] == {
        "exact_duplicates": {"planted": 1, "found": 1, "besides": 1},  # either of the pair counts
        "outliers": {"planted": 2, "found": 1, "besides": 1},
        "dark_pictures": None,
    }


def test_figures_are_summed_over_seeds():
    one = {"planted": 10, "found": 5, "besides": 5}
    assert tables._score([one, {"planted": 10, "found": 9, "besides": 0}]) == "74%, 70%"
    assert tables._score([None, None]) == "no such check" and tables._seeds([True, False, None]) == "1 of 2"
    assert tables._score([{"planted": 10, "found": 0, "besides": 0}]) == "none named, 0%"
