"""What people use today, on the same features and folds: probabilities out of fold, and scores made of them.

Logistic regression on standardised features, its L2 chosen by the held-out likelihood of the first fold, stands behind
cleanlab's scores; extra trees behind them on tables. All scores are high where a label looks wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import process_time

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.trust.logistic import Logistic, Regression

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
Folds = Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]]

NEIGHBOURS = 10
GRID = (1.0, 10.0, 100.0, 1000.0)


@dataclass(slots=True)
class Finding:
    """What a method says of a draw."""

    score: Floats  # high where a label looks wrong, [N]
    flagged: NDArray[np.bool_] | None = None  # called more likely wrong than right
    suggested: Labels | None = None
    p: Floats | None = None  # probability of being wrong; NaN where there is none
    total: float | None = None  # number of errors claimed
    rate_range: tuple[float, float] | None = None  # of the share of wrong labels
    seconds: float = 0.0
    reason: str | None = None  # why there is no p


def make_folds(labels: Labels, seed: int, num_folds: int = 5) -> Folds:
    """Stratified folds, the same for every method of a draw."""
    from sklearn.model_selection import KFold, StratifiedKFold

    kind = StratifiedKFold if np.bincount(labels).min() >= num_folds else KFold
    return list(kind(num_folds, shuffle=True, random_state=seed).split(np.zeros(len(labels)), labels))


def out_of_fold(rows: NDArray[np.float32], labels: Labels, num_classes: int, folds: Folds) -> Floats:
    """Probabilities of logistic regression for examples that it was not fitted on, ``[N, C]``."""
    x, y = torch.from_numpy(rows), torch.from_numpy(labels)
    found = np.zeros((len(labels), num_classes))
    best: tuple[float, Logistic] | None = None
    for train, test in folds:
        regression = Regression(x[train], y[train], num_classes)
        if best is None:
            best = choose(regression, x[test], y[test])
            fitted = best[1]
        else:
            fitted = regression.fit(best[0], best[1])
        found[test] = fitted.log_probabilities(x[test]).double().exp().numpy()
    return found


def choose(regression: Regression, x: torch.Tensor, y: torch.Tensor) -> tuple[float, Logistic]:
    """The L2 with the best held-out likelihood, strongest first, until the likelihood falls."""
    best: tuple[float, Logistic] | None = None
    tried, fitted = -np.inf, None
    for l2 in sorted(GRID, reverse=True):
        fitted = regression.fit(l2, fitted)
        likelihood = float(fitted.log_probabilities(x)[torch.arange(len(y)), y].mean())
        if best is not None and likelihood < tried:
            break
        best, tried = (l2, fitted), likelihood
    assert best is not None
    return best


def find_all(rows: NDArray[np.float32], labels: Labels, num_classes: int, folds: Folds) -> dict[str, Finding]:
    """Every rival's finding on one draw; CPU seconds include the fitting behind it."""
    fits = {"logistic": out_of_fold} | ({"trees": _extra_trees} if rows.shape[1] <= 100 else {})
    found: dict[str, Finding] = {}
    for name, fit in fits.items():
        started = process_time()
        probabilities = fit(rows, labels, num_classes, folds)
        fitted = process_time() - started
        scored = score_by_cleanlab(labels, probabilities, name)
        for item in scored.values():
            item.seconds += fitted
        found |= scored
    started = process_time()
    found["neighbours"] = Finding(_neighbours(rows, labels), seconds=process_time() - started)
    return found


def score_by_cleanlab(labels: Labels, probabilities: Floats, name: str) -> dict[str, Finding]:
    """cleanlab's flags and scores by some probabilities; Datalab, given the same, has its ``self_confidence``."""
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores

    started = process_time()
    # cleanlab needs every class among the labels; a class that the noise emptied is left out of the columns
    present = np.unique(labels)
    p = probabilities[:, present]
    p = p / p.sum(1, keepdims=True)
    y = np.searchsorted(present, labels)
    flagged = np.asarray(find_label_issues(y, p, n_jobs=1))
    spent = process_time() - started
    suggested = present[p.argmax(1)]
    found: dict[str, Finding] = {}
    for method in ("self_confidence", "normalized_margin", "confidence_weighted_entropy"):
        is_adjusted = method != "confidence_weighted_entropy"
        for adjusted in (False, True) if is_adjusted else (False,):
            score = 1 - get_label_quality_scores(y, p, method=method, adjust_pred_probs=adjusted)
            kind = f"{name}, {method}{', adjusted' if adjusted else ''}"
            found[kind] = Finding(score, flagged, suggested, total=float(flagged.sum()), seconds=spent)
    return found


def _neighbours(rows: NDArray[np.float32], labels: Labels) -> Floats:
    x = torch.from_numpy(rows)
    unit = torch.nn.functional.normalize((x - x.mean(0)) / (x.std(0) + 1e-6), dim=1)
    return differing_neighbours(unit, labels, min(NEIGHBOURS, len(labels) - 1))


def differing_neighbours(unit: torch.Tensor, labels: Labels, count: int, block: int = 2_000) -> Floats:
    """Share of the nearest examples by angle that have another label; features have length 1."""
    differ = np.zeros(len(labels))
    for start in range(0, len(labels), block):
        near = (unit[start : start + block] @ unit.mT).topk(count + 1, 1).indices[:, 1:].numpy()
        differ[start : start + block] = (labels[near] != labels[start : start + block, None]).mean(1)
    return differ


def _extra_trees(rows: NDArray[np.float32], labels: Labels, num_classes: int, folds: Folds) -> Floats:
    from sklearn.ensemble import ExtraTreesClassifier

    found = np.zeros((len(labels), num_classes))
    for train, test in folds:
        trees = ExtraTreesClassifier(300, random_state=0).fit(rows[train], labels[train])
        found[np.ix_(test, trees.classes_)] = trees.predict_proba(rows[test])
    return found
