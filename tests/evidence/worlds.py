"""Hold-outs of noise, for algebra."""

import numpy as np

from sgoif.evidence import Holdout, Snapshot


def random_holdout(seed=0, m=40, num_classes=4, num_inputs=5, num_snapshots=1):
    """Draw a hold-out with preconditioners."""
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
