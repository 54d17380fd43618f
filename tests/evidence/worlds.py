"""Small worlds with known truth: clusters, noisy labels, and a softmax head trained on them, in numpy."""

from dataclasses import dataclass

import numpy as np

from sgoif.evidence import Holdout, Snapshot, fold_of
from sgoif.evidence.holdout import softmax


@dataclass(frozen=True)
class World:
    """What a head trained on noisy labels saw of a hold-out."""

    holdout: Holdout
    holdout_true: np.ndarray


def flip_pairs(labels, rate, rng):
    """Call class 0 class 1, and class 2 class 3, for a share of each."""
    target = np.where(labels % 2 == 0, labels + 1, labels)
    return np.where(rng.random(len(labels)) < rate, target, labels)


def make_world(seed=0, n=3_000, m=600, num_classes=4, num_inputs=8, rate=0.35, trusted=True, spread=1.0):
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(num_classes, num_inputs))
    true = rng.integers(0, num_classes, n + m)
    inputs = np.c_[centres[true] + spread * rng.normal(size=(n + m, num_inputs)), np.ones(n + m)]
    given = flip_pairs(true, rate, rng)
    head = train_head(inputs[:n], given[:n], num_classes)
    labels = true[n:] if trusted else given[n:]
    snapshot = Snapshot(inputs[n:], inputs[n:] @ head)
    return World(Holdout(labels, fold_of(np.arange(m)), num_classes, [snapshot]), true[n:])


def train_head(inputs, labels, num_classes, steps=200, step_size=1.0):
    head = np.zeros((inputs.shape[1], num_classes))
    for _ in range(steps):
        head -= step_size * inputs.T @ (softmax(inputs @ head) - np.eye(num_classes)[labels]) / len(inputs)
    return head


def random_holdout(seed=0, m=40, num_classes=4, num_inputs=5, num_snapshots=1):
    """A hold-out of noise, with preconditioners: for algebra."""
    rng = np.random.default_rng(seed)
    snapshots = []
    for step in range(num_snapshots):
        roots = rng.normal(size=(num_classes, num_classes)), rng.normal(size=(num_inputs, num_inputs))
        left, right = (root @ root.T + np.eye(len(root)) for root in roots)
        features = np.c_[rng.normal(size=(m, num_inputs - 1)), np.ones(m)]
        logits = 2 * rng.normal(size=(m, num_classes))
        snapshots.append(Snapshot(features, logits, output_inverse=left, solved_features=features @ right, step=step))
    labels = np.arange(m) % num_classes
    fold = np.arange(m) // num_classes % 2
    return Holdout(labels, fold, num_classes, snapshots)
