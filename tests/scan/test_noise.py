"""Cross-fitted heads learn the noise of labels from the labels alone."""

import numpy as np
import pytest
import torch

from sgoif.scan.folds import Folds
from sgoif.scan.heads import audit_embeddings, given_loss, train_head
from sgoif.scan.noise import learn_noise, read_noise


def world(transition, count=1500, spread=1.0, seed=0):
    """Clusters in eight dimensions, with labels drawn from a transition."""
    rng = np.random.default_rng(seed)
    classes = len(transition)
    true = rng.integers(0, classes, count)
    rows = 3.0 * np.eye(8)[true] + spread * rng.normal(size=(count, 8))
    given = (rng.random(count)[:, None] > np.asarray(transition)[true].cumsum(1)).sum(1)
    return rows.astype(np.float32), true, given


def folds_of(rows, given, num_classes, num_folds=3):
    inputs, targets = torch.from_numpy(rows), torch.from_numpy(given)
    parts = [np.flatnonzero(np.arange(len(rows)) % num_folds == number) for number in range(num_folds)]
    return Folds(
        lambda mine, noise: train_head(inputs, targets, mine, num_classes, transition=noise, epochs=12),
        lambda mine: inputs[mine],
        targets,
        parts,
        num_classes,
    )


PAIR = [[0.65, 0.35, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]


@pytest.mark.parametrize("transition", [PAIR, np.eye(3), 0.7 * np.eye(3) + 0.1], ids=["pair", "clean", "symmetric"])
def test_the_transition_is_found(transition):
    rows, _, given = world(transition)
    found = learn_noise(folds_of(rows, given, 3), rounds=6)
    assert found.transition == pytest.approx(np.asarray(transition), abs=0.08)


def test_a_class_that_is_mostly_mislabelled_is_given_up():
    rows, _, given = world([[0.2, 0.8, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    assert learn_noise(folds_of(rows, given, 3), rounds=3) is None


def test_progress_ends_at_the_end():
    rows, _, given = world(np.eye(3), count=300)
    told = []
    learn_noise(folds_of(rows, given, 3), rounds=4, progress=lambda *what: told.append(what))
    assert told[-1] == ("learning the noise", 4, 4)


def test_the_loss_through_no_noise_is_cross_entropy():
    logits, targets = torch.randn(6, 4, dtype=torch.float64), torch.arange(6) % 4
    plain = torch.nn.functional.cross_entropy(logits, targets)
    assert given_loss(logits, targets, None) == pytest.approx(plain)
    assert given_loss(logits, targets, torch.eye(4, dtype=torch.float64)) == pytest.approx(plain)


def test_labels_are_judged_without_a_clean_one():
    rows, true, given = world(PAIR, count=2000, spread=1.2, seed=1)
    ids = np.array([f"x{i}" for i in range(len(rows))])
    held = np.arange(len(rows)) % 10 == 0
    run = audit_embeddings(rows, given, ids, held, num_classes=3)
    order = np.argsort(run.table["id"])
    mine = np.flatnonzero(~held)[np.argsort(ids[~held])]
    wrong, p = (given != true)[mine], run.table["p_mislabeled"][order]
    assert run.info["noise_model"] and "model of the noise" in run.info["holdout_cleaning"]["reason"]
    worst = np.argsort(-p)[:100]
    assert wrong[worst].mean() > 0.9
    assert p.sum() == pytest.approx(wrong.sum(), rel=0.25)
    assert (run.table["suggested_label"][order] == true[mine])[wrong].mean() > 0.9
    believed = run.holdout()["belief"].to_numpy()
    is_wrong = (given != true)[[int(name[1:]) for name in run.holdout()["id"].to_pylist()]]
    assert believed[is_wrong].mean() < 0.4 < 0.8 < believed[~is_wrong].mean()


def test_noise_is_read_off_networks_only_where_it_is_concentrated():
    rng = np.random.default_rng(3)
    true = rng.integers(0, 4, 4000)
    clear = 0.9 * np.eye(4)[true] + 0.1 * rng.dirichlet([1.0] * 4, len(true))
    pair = np.eye(4)
    pair[0] = [0.6, 0.4, 0.0, 0.0]
    even = 0.7 * np.eye(4) + 0.3 * (1 - np.eye(4)) / 3
    for transition, is_read in ((pair, True), (even, False)):
        given = (rng.random(len(true))[:, None] > transition[true].cumsum(1)).sum(1)
        found = read_noise(clear @ transition, given, (clear @ transition)[:10])
        assert (found is not None) == is_read
        if found is not None:
            assert not found.is_learnt
            assert found.model.transition[0, 1] == pytest.approx(0.4, abs=0.08)
            wrong = found.model.log_odds(found.probabilities, given) > 0
            assert (wrong == (given != true)).mean() > 0.97
