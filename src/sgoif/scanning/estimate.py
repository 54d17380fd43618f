"""How likely each label is wrong, from features alone: cross-fitted heads, and the judge of their predictions.

Where there are many examples, the noise is learnt from a sample, and the others are judged by it block by block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sgoif.judging.fitting import fit_noise
from sgoif.judging.folds import FeatureHead, Fold, make_folds
from sgoif.judging.judge import sample_rows
from sgoif.judging.judgement import Judged, Judgement, judge_fitted, judge_others
from sgoif.judging.linear import LinearHead
from sgoif.scanning import Progress, no_progress
from sgoif.scanning.neighbours import NeighbourHead
from sgoif.scanning.tabular import MOST_COLUMNS, TreeHead, make_fourier_head

__all__ = ["estimate_features", "make_heads"]

_SAMPLE = 200_000  # examples that are learnt from
_JUDGED = 20_000  # others that are judged at once: a head may make hundreds of features of each


def make_heads(inputs: Tensor, num_classes: int, folds: Sequence[Fold]) -> list[FeatureHead]:
    """The heads for standardised features: tables have two more, which may bend."""
    heads: list[FeatureHead] = [LinearHead(inputs, num_classes, folds), NeighbourHead(inputs, num_classes, folds)]
    if inputs.shape[1] <= MOST_COLUMNS:
        heads += [make_fourier_head(inputs, num_classes, folds), TreeHead(inputs, num_classes, folds)]
    return heads


def estimate_features(
    inputs: Tensor,
    ids: NDArray[Any],
    given: NDArray[np.int64],
    num_classes: int,
    *,
    progress: Progress = no_progress,
) -> Judgement:
    """Estimate how likely each label is wrong from standardised features.

    Args:
        inputs: ``[N, D]``.
        ids: by whose hashes examples are split and sampled, ``[N]``.
        given: labels, ``[N]``; every class has one.
        num_classes: ``C``.
        progress: called with the stage, what is done, and the total.
    """
    rows = sample_rows(ids, given, _SAMPLE)
    is_all = len(rows) == len(given)
    learnt_from = inputs if is_all else inputs[torch.from_numpy(rows)]
    heads = make_heads(learnt_from, num_classes, make_folds(ids[rows], given[rows]))
    fitted = fit_noise(heads, given[rows], num_classes, partial(progress, "fitting"))
    found = replace(judge_fitted(fitted), sampled=rows)
    if is_all:
        return found
    predictors = [head.predictor(is_refitted=fitted.is_refitted) for head in heads]
    del heads, learnt_from
    others = np.setdiff1d(np.arange(len(given)), rows, assume_unique=True)
    columns = {}
    for name in Judged._fields:
        values = getattr(found, name)
        columns[name] = np.zeros((len(given), *values.shape[1:]), values.dtype)
        columns[name][rows] = values
    for start in range(0, len(others), _JUDGED):
        some = others[start : start + _JUDGED]
        mine = inputs[torch.from_numpy(some)]
        logs, labels = [predict(mine) for predict in predictors], torch.from_numpy(given[some])
        for name, values in zip(columns, judge_others(fitted, logs, labels), strict=True):
            columns[name][some] = values
        progress("judging", start + len(some), len(others))
    return replace(found, **columns)  # type: ignore[arg-type]
