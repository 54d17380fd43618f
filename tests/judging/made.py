"""Made examples of which everything is known: classes, labels, and what the best model says of each."""

from dataclasses import dataclass

import numpy as np
import torch

from sgoif.judging.observations import Heldout, Observations
from sgoif.judging.predictions import TopPredictions, log_odds, set_log_odds


@dataclass(frozen=True)
class Made:
    """Examples of unit normals around corners, ``s`` apart from the origin."""

    true: np.ndarray
    given: np.ndarray
    logs: np.ndarray  # log probabilities of the given class, by a model that has not seen its label

    @property
    def wrong(self):
        return self.true != self.given

    def observations(self):
        """As a model that has not seen the labels makes them."""
        return Observations(
            ids=np.arange(len(self.given)), labels=self.given, views={"log_p": TopPredictions.of(self.logs)}
        )

    def heldout(self, *, trusted=False):
        labels = self.true if trusted else self.given
        return Heldout(labels=labels, predictions=TopPredictions.of(self.logs), trusted=trusted)

    def trained(self, heldout, *, raised, blur=0.0, mean_loss=True, seed=9):
        """As a model that was trained on the labels: surer of every given one, by heart if the blur is large."""
        odds = log_odds(self.logs, self.given)
        seen = odds + raised if not blur else raised + blur * np.random.default_rng(seed).normal(size=len(odds))
        usual = np.log1p(np.exp(-odds))  # the cross-entropy before it was learnt
        return Observations(
            ids=np.arange(len(self.given)),
            labels=self.given,
            views={"final": TopPredictions.of(set_log_odds(self.logs, self.given, seen))},
            heldout=heldout,
            over_visits=TopPredictions.of(self.logs) if mean_loss else None,
            mean_loss=usual if mean_loss else None,
        )


def make(count=3000, classes=4, apart=3.5, rate=0.1, seed=0, pairs=False, sure=0.4):
    """Draw examples; wrong labels are any other class, or the next one."""
    rng = np.random.default_rng(seed)
    true = rng.integers(0, classes, count)
    scores = apart * (rng.normal(size=(count, classes)) + apart * np.eye(classes)[true])
    step = 1 if pairs else rng.integers(1, classes, count)
    given = np.where(rng.random(count) < rate, (true + step) % classes, true)
    scores *= sure  # less sure than is right without errors: a model that learns wrong labels is
    return Made(true, given, scores - np.logaddexp.reduce(scores, axis=1, keepdims=True))


def average_precision(score, wrong):
    order = wrong[np.argsort(-score, kind="stable")]
    return (np.cumsum(order) / np.arange(1, len(order) + 1))[order].mean()


def clusters(count=1200, classes=4, width=120, spread=1.6, seed=0):
    """Draw features around the corners of a cube; gives the generator too, to go on with."""
    rng = np.random.default_rng(seed)
    truth = np.arange(count) % classes
    rows = rng.normal(size=(count, width)) + spread * np.repeat(np.eye(classes), width // classes, axis=1)[truth] / 2
    return torch.from_numpy(rows.astype(np.float32)), truth, rng
