"""A class with fewer than 5 held-out examples is not judged and never suggested, and the run says so."""

import logging

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sgoif
from tests.test_no_probabilities import trained
from tests.training.worlds import world

NAMES = ["a", "b", "c", "d", "e", "f"]
WHY = {
    0: "class d has no held-out example",
    1: "class d has 1 held-out example, too few to judge",
    4: "class d has 4 held-out examples, too few to judge",
}
SUGGESTED = ("suggested_label", "suggested_label_2", "suggested_label_3")


def rare_world(held=1):
    """Six classes, of which class d has a few training examples and ``held`` held-out ones."""
    train, holdout = world(classes=6)

    def cut(points, given, count):
        rare = torch.nonzero(given == 3).flatten()
        kept = torch.ones(len(given), dtype=torch.bool)
        kept[rare[count:]] = False
        return points[kept], given[kept]

    return cut(*train[:2], 6), cut(*holdout[:2], held)


def watched(train, holdout, **settings):
    return trained(train, holdout, epochs=12, class_names=NAMES, **settings)


def audited(train, holdout, **settings):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(train[0].shape[1], 32), nn.ReLU(), nn.Linear(32, 6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(12):
        for rows in torch.randperm(len(train[1]), generator=torch.Generator().manual_seed(0)).split(50):
            F.cross_entropy(model(train[0][rows]), train[1][rows]).backward()
            optimizer.step()
            optimizer.zero_grad()
    return sgoif.audit(model, train, anchors=holdout, class_names=NAMES, **settings)


@pytest.mark.parametrize(("trusted", "held"), [(True, 0), (True, 1), (False, 4)])
@pytest.mark.parametrize("make", [watched, audited])
def test_a_rare_class_is_neither_judged_nor_suggested(make, trusted, held, caplog, tmp_path):
    with caplog.at_level(logging.WARNING):
        run = make(*rare_world(held), trusted=trusted, out=str(tmp_path / "run"))
    table, given = run.table, run.table["given_label"]
    assert run.info["no_p_reason"] is None
    reason = WHY[held]
    assert set(table["no_p_reason"][given == 3]) == {reason} and set(table["no_p_reason"][given != 3]) == {None}
    assert (np.isfinite(table["p_mislabeled"]) == (given != 3)).all()
    assert not any((table[name] == 3).any() for name in SUGGESTED)
    assert table["suggested_label"].min() >= 0
    transition = np.array(run.info["transition"])
    assert transition[3].tolist() == transition[:, 3].tolist() == np.eye(6)[3].tolist()
    kept = run.holdout().to_pydict()
    rows = [i for i, label in enumerate(kept["given_label"]) if label == 3]
    assert len(rows) == held and all(kept["suggested_label"][i] != 3 for i in range(len(kept["id"])))
    if not trusted:
        assert {kept["no_p_reason"][i] for i in rows} == {reason}
    told = run.info["warnings"]["few_held_out"]
    assert told.startswith(f"1 of 6 classes have fewer than 5 held-out examples: d ({held}).")
    assert [record.getMessage() for record in caplog.records].count(told) == 1
    # the README's first question; before, a KeyError
    assert run.label_issues(top=5).select(["id", "given_label", "p_mislabeled", "why"])["p_mislabeled"].null_count == 0
    competence = run.info["competence"]
    assert f"right on {competence['accuracy']:.0%} of {competence['num_examples']} examples" in str(run)
    assert "Estimated errors" in str(run) and "guessing" in str(run)


def test_a_class_with_five_held_out_examples_is_judged():
    run = watched(*rare_world(5), trusted=True)
    assert set(run.table["no_p_reason"]) == {None} and "few_held_out" not in run.info.get("warnings", {})


def test_a_hold_out_with_few_of_every_class_ranks_without_probabilities():
    train, holdout = world(classes=6)
    few = torch.cat([torch.nonzero(holdout[1] == label).flatten()[:4] for label in range(6)])
    run = watched(train, (holdout[0][few], holdout[1][few]), trusted=True)
    assert "0 of 6 classes have at least 5 held-out examples" in run.info["no_p_reason"]
    assert np.isnan(run.table["p_mislabeled"]).all() and len(np.unique(run.table["worst"])) > 100


def test_a_snapshot_does_not_judge_a_rare_class(tmp_path):
    from sgoif.snapshot import read_snapshot

    train, holdout = rare_world(2)
    path = str(tmp_path / "snapshot")
    run = audited(train, holdout, trusted=True, snapshot=path)
    snapshot = read_snapshot(path)
    labels = torch.arange(6)
    found = snapshot.score(torch.randn(6, 32), torch.randn(6, 6), labels)
    assert found["no_p_reason"][3] == "class d has 2 held-out examples, too few to judge"
    assert np.isnan(found["p_mislabeled"]).tolist() == [label == 3 for label in range(6)]
    assert not (found["suggested_label"] == 3).any() and run.info["no_p_reason"] is None
