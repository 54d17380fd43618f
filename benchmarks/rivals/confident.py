"""Confident learning through cleanlab: the same network and recipe, four times on three quarters of the data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from benchmarks import loops
from benchmarks.rivals.case import Bare, Case, Floats, Found, fresh_model, outputs, stopwatch

__all__ = ["NAMES", "crossval_probabilities", "find"]

METHODS = {
    "confident learning, self-confidence": "self_confidence",
    "confident learning, normalised margin": "normalized_margin",
    "confident learning, weighted entropy": "confidence_weighted_entropy",
}
NAMES = tuple(METHODS)
NUM_FOLDS = 4


def find(case: Case, bare: Bare) -> dict[str, Found]:
    """Rank by cleanlab's three label-quality scores; its flags (``find_label_issues``) go with the first."""
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores

    with stopwatch() as training:
        probabilities = crossval_probabilities(case)
    given = case.given.numpy()
    with stopwatch() as flagging:
        flags = np.asarray(find_label_issues(given, probabilities, n_jobs=1), dtype=bool)
    found: dict[str, Found] = {}
    for name, method in METHODS.items():
        with stopwatch() as ranking:
            scores = -get_label_quality_scores(given, probabilities, method=method)
        found[name] = Found(scores, training.seconds + ranking.seconds)
    first = found[NAMES[0]]
    return {**found, NAMES[0]: replace(first, seconds=first.seconds + flagging.seconds, flags=flags)}


def crossval_probabilities(case: Case) -> Floats:
    """Predict every example by the one network of four that was not trained on it: ``[N, C]``, rows sum to one."""
    fold = np.random.default_rng(case.seed).permutation(len(case.given)) % NUM_FOLDS
    probabilities = np.zeros((len(case.given), case.num_classes))
    for number in range(NUM_FOLDS):
        kept, out = (torch.from_numpy(np.flatnonzero(part)) for part in (fold != number, fold == number))
        model = fresh_model(case)
        loops.train(model, case.images[kept], case.given[kept], case.recipe, case.seed)
        probabilities[out.numpy()] = outputs(model, case.images[out], case.recipe).double().softmax(1).numpy()
    return probabilities
