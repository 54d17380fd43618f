"""Checks among a reviewer's cards cannot be told from suspicious labels by what the page shows of them."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict

from sgoif.evidence import LIKENESS_COLUMNS
from sgoif.review.plan import read_plans
from sgoif.run import load
from tests.cli.runs import NAMES, held_out, table, write_run
from tests.report.test_page import document, page

NUM_FLAGGED, NUM_RIGHT = 1000, 1500


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """A reviewer's page with as many checks as suspicious labels for every other card, and the answer key."""
    rng = np.random.default_rng(0)
    count = NUM_FLAGGED + NUM_RIGHT
    given = rng.integers(0, 4, count)
    is_wrong = np.arange(count) < NUM_FLAGGED
    p = np.where(is_wrong, np.sort(rng.beta(5, 2, count))[::-1], rng.uniform(0, 0.05, count))
    p[:NUM_FLAGGED] = np.sort(rng.beta(5, 2, NUM_FLAGGED))[::-1].clip(min=0.06)
    looks = np.where(is_wrong, (given + 1) % 4, given)
    words = rng.integers(-(2**62), 2**62, (4, 4))[looks] ^ (1 << rng.integers(0, 60, (count, 4)))
    examples = table(
        p,
        given,
        (given + 1) % 4,
        suggested_label_2=np.where(rng.random(count) < 0.7, (given + 2) % 4, -1),
        n_visits=rng.integers(1, 12, count),
        p_given=rng.random(count),
        **{name: words[:, i] for i, name in enumerate(LIKENESS_COLUMNS)},
    )
    held = held_out(400) | {"p_mislabeled": np.full(400, 0.001), "trusted": np.full(400, True)}
    folder = tmp_path_factory.mktemp("checks")
    run = load(write_run(folder / "run", examples, holdout=held, names=NAMES))
    made = page(run, folder, top=NUM_FLAGGED, reviewers=["ann"], checks=0.5, run_url=run.url)
    plan = read_plans(run.url)[0]
    return document(made), {plan.token(card): card.kind for card in plan.cards["ann"]}


def features_of(found):
    """Everything in a card's data but the example, its neighbours and the suggestion with its shares."""
    cards, beside = found["cards"], found["beside"]
    count = len(cards["id"])
    left_out = {"suggested", "shares", "agrees", "example", "content", "id"}
    columns = [np.arange(count), [len(items) for items in beside["harmed"]], [len(items) for items in beside["epochs"]]]
    columns += [np.diff(cards["p"], prepend=1.0), np.diff(cards["p"], append=0.0)]  # steps to the cards around it
    for name in sorted(set(cards) - left_out):
        columns.append([as_number(value) for value in cards[name]])
    columns += [[len(ident) for ident in cards["id"]], [int(ident[:4], 16) for ident in cards["id"]]]
    return np.column_stack(columns).astype(float)


def as_number(value):
    if isinstance(value, str):
        return sum(value.encode()) + len(value)
    return -1.0 if value is None else float(value)


def test_no_classifier_finds_the_checks(checked):
    found, kinds = checked
    is_check = np.array([kinds[ident] != "flagged" for ident in found["cards"]["id"]])
    assert is_check.sum() > 450
    folds = StratifiedKFold(3, shuffle=True, random_state=0)
    model = HistGradientBoostingClassifier(max_iter=30, max_leaf_nodes=8, random_state=0)
    guessed = cross_val_predict(model, features_of(found), is_check, cv=folds, method="predict_proba")[:, 1]
    auc = roc_auc_score(is_check, guessed)
    assert max(auc, 1 - auc) <= 0.55
    # and the classifier finds what is there: given the kind, it is right
    given = np.column_stack([features_of(found), is_check + np.random.default_rng(0).normal(0, 0.3, len(is_check))])
    guessed = cross_val_predict(model, given, is_check, cv=folds, method="predict_proba")[:, 1]
    assert roc_auc_score(is_check, guessed) > 0.9


def test_checks_have_neighbours_too(checked):
    found, kinds = checked
    numbers = {kind: set() for kind in kinds.values()}
    for ident, nearest in zip(found["cards"]["id"], found["beside"]["nearest"]):
        numbers[kinds[ident]].add(len(nearest))
    assert numbers["flagged"] == numbers["random"] == {6}
