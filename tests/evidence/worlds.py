"""Small worlds with known truth: clusters, noisy labels, and a softmax head trained on them, in numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sgoif.evidence import Holdout, Snapshot, fold_of
from sgoif.evidence.holdout import softmax


@dataclass(frozen=True)
class World:
    """A head trained on noisy labels, and what it saw of training examples and hold-out."""

    seen: Snapshot  # training examples
    given: np.ndarray
    true: np.ndarray
    holdout: Holdout
    holdout_true: np.ndarray

    @property
    def is_error(self):
        return self.given != self.true


def flip_pairs(labels, rate, rng):
    """Call class 0 class 1, and class 2 class 3, for a share of each."""
    target = np.where(labels % 2 == 0, labels + 1, labels)
    return np.where(rng.random(len(labels)) < rate, target, labels)


def flip_any(labels, chance, num_classes, rng):
    """Call examples any other class; ``chance`` is one number or one for each."""
    other = (labels + rng.integers(1, num_classes, len(labels))) % num_classes
    return np.where(rng.random(len(labels)) < chance, other, labels)


def hard_ones(inputs, centres):
    """Compute how little the nearest centre stands out, ``[N]``, one on average."""
    nearness = softmax(-((inputs[:, None] - centres) ** 2).sum(2) / 2).max(1)
    return np.sqrt(1 - nearness) / np.sqrt(1 - nearness).mean()


def make_world(seed=0, n=3_000, m=600, num_classes=4, num_inputs=8, rate=0.35, trusted=True, spread=1.0, noise="pairs"):
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(num_classes, num_inputs))
    true = rng.integers(0, num_classes, n + m)
    inputs = np.c_[centres[true] + spread * rng.normal(size=(n + m, num_inputs)), np.ones(n + m)]
    if noise == "pairs":
        given = flip_pairs(true, rate, rng)
    else:
        chance = rate * hard_ones(inputs[:, :-1], centres) if noise == "on hard ones" else rate
        given = flip_any(true, chance, num_classes, rng)
    head = train_head(inputs[:n], given[:n], num_classes)
    logits = inputs @ head
    labels = true[n:] if trusted else given[n:]
    snapshot = Snapshot(inputs[n:], logits[n:])
    holdout = Holdout(labels, fold_of(np.arange(m)), num_classes, [snapshot])
    return World(Snapshot(inputs[:n], logits[:n]), given[:n], true[:n], holdout, true[n:])


def train_head(inputs, labels, num_classes, steps=200, step_size=1.0):
    head = np.zeros((inputs.shape[1], num_classes))
    for _ in range(steps):
        head -= step_size * inputs.T @ (softmax(inputs @ head) - np.eye(num_classes)[labels]) / len(inputs)
    return head


def random_holdout(seed=0, m=40, num_classes=4, num_inputs=5, num_snapshots=1, factors=True):
    """A hold-out of noise, with preconditioners: for algebra."""
    rng = np.random.default_rng(seed)
    snapshots = []
    for step in range(num_snapshots):
        roots = rng.normal(size=(num_classes, num_classes)), rng.normal(size=(num_inputs, num_inputs))
        left, right = (root @ root.T + np.eye(len(root)) for root in roots)
        features = np.c_[rng.normal(size=(m, num_inputs - 1)), np.ones(m)]
        solved = {"output_inverse": left, "solved_features": features @ right} if factors else {}
        snapshots.append(Snapshot(features, 2 * rng.normal(size=(m, num_classes)), **solved, step=step))
    labels = np.arange(m) % num_classes
    fold = np.arange(m) // num_classes % 2
    return Holdout(labels, fold, num_classes, snapshots)
