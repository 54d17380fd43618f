"""Folds: stratified, the same in any order, never fitted on what they predict."""

import numpy as np
import torch

from sgoif.judging.folds import Fold, make_folds
from sgoif.judging.linear import LinearHead
from tests.judging.made import clusters


def test_folds_are_stratified_and_the_same_in_any_order():
    ids, labels = np.array([f"picture-{i}" for i in range(2000)]), np.arange(2000) % 10
    folds = make_folds(ids, labels)
    assert len(folds) == 5 and all((np.bincount(labels[f.test]) >= 39).all() for f in folds)
    order = np.random.default_rng(0).permutation(2000)
    again = make_folds(ids[order], labels[order])
    assert set(ids[folds[0].test]) == set(ids[order][again[0].test])
    assert len(make_folds(ids[:200], labels[:200])) == 15  # few are predicted several times over


def test_folds_that_cover_an_example_twice_are_averaged():
    rows, truth, _ = clusters(120, width=20)
    half = torch.arange(120) < 60
    everywhere = [Fold(torch.where(half)[0], torch.where(~half)[0]), Fold(torch.where(~half)[0], torch.where(half)[0])]
    once = LinearHead(rows, 4, everywhere).fit(torch.from_numpy(truth))
    twice = LinearHead(rows, 4, everywhere + everywhere).fit(torch.from_numpy(truth))
    torch.testing.assert_close(once, twice, atol=1e-4, rtol=1e-3)


def test_no_fold_of_the_heads_is_fitted_on_what_it_predicts():
    folds = make_folds(np.arange(240), np.arange(240) % 3)
    for train, test in folds:
        assert len(test) == 48 and sorted(torch.cat([train, test]).tolist()) == list(range(240))
    assert torch.cat([fold.test for fold in folds]).bincount().tolist() == [3] * 240
