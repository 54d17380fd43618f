"""No fold sees itself, and what is judged of an example is joined to its own id."""

import numpy as np
import torch
from torch import nn

from sgoif.judging.fitting import fit_noise
from sgoif.judging.heads import PredictedHead
from sgoif.judging.judgement import judge_fitted
from sgoif.scanning.crossfit import LabelledSet, ScanRun, cross_fitted_audit

COUNT, CLASSES = 240, 3
ROWS = torch.arange(COUNT)
LABELS, HELD, VERIFIED = ROWS % CLASSES, (ROWS % 8 == 0).numpy(), (ROWS % 5 == 0).numpy()
IDS = np.random.default_rng(0).permutation(COUNT)


class Memory(nn.Module):
    """Knows the labels of some rows by heart, and nothing of others; an input is the number of a row."""

    def __init__(self, rows):
        super().__init__()
        self.known, self.head = torch.isin(ROWS, torch.from_numpy(rows)), nn.Linear(CLASSES, CLASSES)
        nn.init.eye_(self.head.weight), nn.init.zeros_(self.head.bias)

    def forward(self, rows):
        guess = torch.sin(torch.outer(1.0 + rows, torch.arange(1.0, 1 + CLASSES))) / 10
        return self.head(guess + 20 * self.known[rows, None] * nn.functional.one_hot(LABELS[rows], CLASSES))


def audit(**options):
    """The run of three memories, and which rows each was trained on."""
    trained = []

    def train(rows):
        trained.append(set(rows.tolist()))
        model = Memory(rows)
        return model, model

    examples = LabelledSet(IDS, LABELS, HELD, CLASSES, VERIFIED)
    return cross_fitted_audit(train, lambda rows: ROWS[rows], examples, ScanRun(), num_folds=3, **options), trained


def test_no_example_is_judged_by_a_model_that_was_trained_on_it():
    run, trained = audit()
    assert sum(map(len, trained)) == 2 * (~HELD).sum() == 2 * len(run.table["id"])
    assert not set.union(*trained) & set(np.flatnonzero(HELD).tolist())
    assert run.table["p_given"].max() < 0.5  # one that knows the label gives it 1
    assert run.info["competence"]["accuracy"] < 0.6


def test_an_estimate_is_joined_to_the_ids_and_a_verified_label_is_not_doubted():
    estimate = judge_fitted(
        fit_noise([PredictedHead(torch.rand(COUNT, CLASSES).log_softmax(1))], LABELS.numpy(), CLASSES)
    )
    estimate.p[:] = np.linspace(0.1, 0.9, COUNT)
    table, row = audit(estimate=estimate)[0].table, np.argsort(IDS)
    mine = row[table["id"]]
    np.testing.assert_array_equal(table["given_label"], LABELS[mine])
    np.testing.assert_allclose(table["label_score"], 1 - np.where(VERIFIED, 0, estimate.p)[mine])
    with torch.no_grad():
        believed = Memory(np.zeros(0, np.int64))(ROWS).softmax(1)[ROWS, LABELS]
    np.testing.assert_allclose(table["p_given"], believed[mine], rtol=1e-4)  # scores stay with their own ids
