"""Lists of the simulated reviewer: what each page offers for the same labels."""

import numpy as np

from benchmarks.keystrokes import simulate
from benchmarks.review_time import Found, list_checked, list_class_keys, list_suggestions


def a_scan(count=400, belief=0.7, seed=0):
    """Labels that are all wrong, each suggestion right, with neighbours that agree; the probabilities are too low."""
    rng = np.random.default_rng(seed)
    true = rng.integers(1, 4, count)
    rows = {"given_label": np.zeros(count, np.int64), "p_mislabeled": np.full(count, belief + 0.05)}
    for place, tail in enumerate(("", "_2", "_3")):
        rows[f"suggested_label{tail}"] = (true + place - 1) % 3 + 1
        rows[f"p_suggested{tail}"] = np.full(count, belief if place == 0 else 0.01)
    return Found(rows, true, np.repeat(true[:, None], 6, axis=1))


def test_what_the_model_is_not_sure_of_is_offered_in_bulk_only_after_decisions():
    found = a_scan()
    fixed, checked = list_class_keys(found), list_checked(found)
    assert (fixed.answer == -1).all() and (list_suggestions(found).answer == found.true).all()
    outcome = simulate("workbench", checked, overlooks=0.0, seed=1)
    assert (outcome.num_bulk, outcome.num_bulk_right, outcome.num_right) == (200, 200, 400)
    assert simulate("workbench", fixed, overlooks=0.0, seed=1).num_bulk == 0


def test_suggestions_that_decisions_contradict_are_not_offered():
    found = a_scan()
    wrong = Found(found.rows, np.full(400, 9), found.near)
    assert simulate("workbench", list_checked(wrong), overlooks=0.0, seed=1).num_bulk == 0
