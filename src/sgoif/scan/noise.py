"""Which class is given for which, from classifiers that predict the labels of examples they have not seen.

Learnt by training them again and again through what was found, where that is cheap; else read off them once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.evidence import NoiseModel, concentration
from sgoif.scan.folds import Folds, Progress, Rows, no_progress
from sgoif.training.noise import NoiseEvidence

__all__ = ["learn_noise", "read_noise"]

Predictions = NDArray[np.floating[Any]]  # [N, C]

_SETTLED = 0.002  # change of the transition's entries, summed over a row
_CONCENTRATED = 0.62  # of a transition that is read and not learnt


def learn_noise(folds: Folds, rounds: int, progress: Progress = no_progress) -> NoiseModel | None:
    """Learn the transition by training all models some times, each time through the transition found before.

    On frozen features of 20,000 CIFAR-10 images (development set) the entries of pair noise, 0.4, were found as
    0.34-0.41, and the expected number of errors within 7% on pair and symmetric noise; 40% human noise, which depends
    on the picture, was found at two thirds of its strength.

    Returns:
        The model, or None where many classes seem to be given another label more often than their own.
    """
    given = folds.given
    model: NoiseModel | None = None
    for number in range(rounds):
        seen = folds.predict_all(forward for _, forward in folds.train_all(model))
        progress("learning the noise", number + 1, rounds)
        if model is None:
            model = _start(seen, given)
            if model is None:
                return None
            seen = model.undo(seen).astype(np.float32)
        before = model.transition
        model = model.updated(model.posterior(seen, given), given).plausible()
        if model is None:
            return None
        if np.abs(model.transition - before).sum(1).max() < _SETTLED:
            progress("learning the noise", rounds, rounds)
            break
    return model


def read_noise(seen: Predictions, given: Rows, held: Predictions) -> NoiseEvidence | None:
    """A model of the noise from networks that took the labels as they are: training them again would cost too much.

    Such networks may be right for half of the unseen examples only, and what they confuse must not pass for noise. So
    it is used only where few classes are given for each: 5,000 CIFAR-10 images (development set), with it and without,
    average precision 57 and 37, 57 and 41 on two draws of pair noise (concentration 0.77, 0.78), but 67 and 73 on human
    noise (0.49).

    Args:
        seen: predictions of training examples, by networks that were not trained on them.
        given: their labels.
        held: predictions of the hold-out.

    Returns:
        What the model says, or None where the noise is spread, or too strong to be known.
    """
    start = _start(seen, given)
    if start is None or concentration(start.transition) < _CONCENTRATED:
        return None
    seen, held = start.undo(seen), start.undo(held)
    model = start.updated(start.posterior(seen, given), given).concentrated()
    return NoiseEvidence(model, seen, held, is_learnt=False)


def _start(seen: Predictions, given: Rows) -> NoiseModel | None:
    """Where to begin; a class that no example is given has no row to read, and keeps the identity's."""
    transition = NoiseModel.start(seen).transition
    is_absent = np.bincount(given, minlength=len(transition)) == 0
    if is_absent.any():
        transition = np.where(is_absent[:, None], np.eye(len(transition)), np.where(is_absent, 0.0, transition))
        transition = transition / transition.sum(axis=1, keepdims=True)
    return NoiseModel(transition).plausible()
