"""Trainings that bear wrong labels: the losses are those of their papers, and the table pairs seeds."""

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks import loops, robust


def test_symmetric_cross_entropy_is_that_of_the_paper():
    torch.manual_seed(0)
    logits, labels = torch.randn(7, 10, dtype=torch.float64), torch.arange(7)
    batch = loops.Batch(0, 0, labels, logits, labels)
    reverse = -(logits.softmax(1) * F.one_hot(labels, 10).double().clamp(min=1e-4).log()).sum(1).mean()
    expected = 0.1 * F.cross_entropy(logits, labels) + reverse
    torch.testing.assert_close(robust._symmetric(lambda inputs: inputs, batch, np.random.default_rng(0)), expected)


def test_mixup_blends_targets_as_it_blends_pictures():
    logits, labels = torch.eye(4) * 3, torch.arange(4)
    seen = []
    batch = loops.Batch(0, 0, labels, logits[:, None, None, :], labels)
    rng = np.random.default_rng(2)
    loss = robust._mixup(1.0)(lambda inputs: seen.append(inputs[:, 0, 0]) or inputs[:, 0, 0], batch, rng)
    target = seen[0] / 3  # one-hot labels, blended alike
    torch.testing.assert_close(loss, -(target * seen[0].log_softmax(1)).sum(1).mean())
    assert ((target > 0).sum(1) == 2).any()
