"""The trust grid: cells that are apart, draws that repeat, figures that are true on cases known by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.trust import verdicts
from benchmarks.trust.cells import DEVELOPMENT, REPORTED, Cell
from benchmarks.trust.draws import Draw, draw
from benchmarks.trust.logistic import Regression
from benchmarks.trust.measure import measure
from benchmarks.trust.rivals import GRID, Finding, choose, make_folds, out_of_fold


def test_at_most_sixty_reported_cells_and_none_is_tuned_on():
    names = [cell.name for cell in REPORTED]
    assert len(names) == len(set(names)) <= 60
    assert not {cell.data for cell in REPORTED} & {cell.data for cell in DEVELOPMENT}


@pytest.mark.parametrize("noise", ["clean", "sym-5", "pair-20"])
def test_a_cell_and_a_seed_fix_the_draw(noise):
    cell = Cell("wine", noise, 0)
    one, again, other = draw(cell, 1), draw(cell, 1), draw(cell, 2)
    assert (one.given == again.given).all() and (one.rows == again.rows).all()
    assert one.wrong.sum() == round(cell.rate * len(one.given))
    assert noise == "clean" or (one.given != other.given).any()
    if noise == "pair-20":  # each class goes to one other
        assert set(zip(one.true[one.wrong], one.given[one.wrong], strict=True)) <= {(0, 1), (1, 2), (2, 0)}


def test_figures_of_a_finding_known_by_hand():
    true = np.zeros(100, np.int64)
    given = true.copy()
    given[:10] = 1
    drawn = Draw(np.zeros((100, 1), np.float32), given, true, 2)
    p = np.where(np.arange(100) < 8, 0.9, 0.1)
    p[20:22] = 0.8  # two false alarms
    found = measure(Finding(p, p >= 0.5, np.zeros(100, np.int64), p, 10.0, (0.05, 0.2)), drawn)
    assert found["flag_precision"] == pytest.approx(80) and found["flag_recall"] == pytest.approx(80)
    assert found["left_after_relabelling"] == 2
    assert found["missed"] == pytest.approx(20)
    assert found["rate_range"] == {"low": 0.05, "high": 0.2, "true": 0.1}
    # 8 at 0.9 all wrong, 2 at 0.8 none wrong, 90 at 0.1 of which 2 are wrong
    assert found["ece"] == pytest.approx(100 * (8 * 0.1 + 2 * 0.8 + 90 * abs(0.1 - 2 / 90)) / 100)


def test_recall_at_a_precision_known_by_hand():
    wrong = np.array([True, False, True, False])
    drawn = Draw(np.zeros((4, 1), np.float32), wrong.astype(np.int64), np.zeros(4, np.int64), 2)
    curve = measure(Finding(np.array([4.0, 3.0, 2.0, 1.0])), drawn)["recall_at_precision"]
    assert (curve[100], curve[67], curve[66], curve[0]) == (50, 50, 100, 100)  # 1 of 1, 2 of 3
    assert (
        measure(Finding(np.array([4.0, 3.0, 3.0, 1.0])), drawn)["recall_at_precision"][67] == 50
    )  # ties fall together


def test_the_quick_fit_ends_where_a_converged_one_does():
    drawn = draw(Cell("digits", "sym-5", 0), 31)
    folds = make_folds(drawn.given, 31)
    found = out_of_fold(drawn.rows, drawn.given, 10, folds)
    assert found.sum(1) == pytest.approx(1)
    x, y = torch.from_numpy(drawn.rows), torch.from_numpy(drawn.given)
    train, test = folds[0]
    start = Regression(x[train], y[train], 10)
    l2, _ = choose(start, x[test], y[test])
    likelihoods = [
        float(start.fit(value).log_probabilities(x[test])[torch.arange(len(test)), y[test]].mean()) for value in GRID
    ]
    assert l2 == GRID[int(np.argmax(likelihoods))]  # what a search over all of them chooses
    train, test = folds[1]  # this one starts from the fit of the first fold
    exact = _converged(x[train].double(), y[train], l2)
    reference = exact(x[test].double()).numpy()
    assert np.abs(found[test] - reference).max() < 0.02 and np.abs(found[test] - reference).mean() < 5e-4
    given = np.arange(len(test)), drawn.given[test]
    assert np.log(found[test][given]).mean() == pytest.approx(np.log(reference[given]).mean(), abs=5e-4)


def _converged(x, y, l2):
    """Plain L-BFGS in float64 from zero until nothing moves."""
    mean, scale = x.mean(0), x.std(0) + 1e-6
    weights = torch.zeros(x.shape[1] + 1, 10, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weights], max_iter=2_000, tolerance_grad=1e-9, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy((x - mean) / scale @ weights[:-1] + weights[-1], y)
        loss = loss + 0.5 * l2 / len(x) * weights[:-1].square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert weights.grad.abs().max() < 1e-6
    return lambda rows: ((rows - mean) / scale @ weights[:-1] + weights[-1]).softmax(1).detach()


@pytest.mark.data
@pytest.mark.parametrize("name, judged, wrong", [("cifar10", 275, 54), ("cifar100", 2_235, 585), ("mnist", 100, 15)])
def test_verdicts_have_the_published_counts(name, judged, wrong):
    found = verdicts.load(name)
    assert (len(found.index), int(found.wrong.sum())) == (judged, wrong)
    assert (found.published is None) == (name == "cifar100")


def test_only_judged_examples_count():
    judged = verdicts.Judged(np.zeros(6, np.int64), np.array([1, 3]), np.array([True, False]), None)
    score = np.array([9.0, 2.0, 9.0, 1.0, 9.0, 9.0])
    found = verdicts.measure(Finding(score, score > 1.5), judged)
    assert found["ap"] == 100 and found["num_flagged"] == 5
    assert (found["num_judged_flagged"], found["flag_precision"], found["flag_recall"]) == (1, 100, 100)


@pytest.mark.data
def test_the_train_set_stands_behind_the_test_set():
    alone, labels = verdicts.load_rows("mnist-pixels")
    rows, given = verdicts.load_rows("mnist-pixels+train")
    assert alone.shape == (10_000, 784) and rows.shape == (30_000, 784) and alone.max() == 1
    assert (rows[:10_000] == alone).all() and (given[:10_000] == labels).all()


def test_a_clean_set_has_no_precision_but_counts_flags():
    labels = np.arange(20) % 2
    found = measure(Finding(np.zeros(20), np.arange(20) < 3), Draw(np.zeros((20, 1), np.float32), labels, labels, 2))
    assert "ap" not in found and found["num_flagged"] == 3 and found["flag_precision"] == 0
