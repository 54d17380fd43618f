"""Losses of tags: what torch says where all are known, and nothing of what is not."""

import math

import torch
import torch.nn.functional as F

from sgoif.tasks.multilabel import example_losses


def test_the_mean_over_a_batch_is_torchs():
    logits, targets = torch.randn(5, 7, dtype=torch.float64), torch.randint(0, 2, (5, 7)).double()
    torch.testing.assert_close(
        example_losses(logits, targets).mean(), F.binary_cross_entropy_with_logits(logits, targets)
    )


def test_unknown_tags_have_neither_loss_nor_gradient():
    logits = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([[1.0, math.nan, 0.0], [-1.0, 0.0, 1.0]], dtype=torch.float64)
    (gradient,) = torch.autograd.grad(example_losses(logits, targets).sum(), logits)
    assert gradient[0, 1] == gradient[1, 0] == 0
    known = torch.tensor([[True, False, True], [False, True, True]])
    torch.testing.assert_close(gradient[known], ((logits.sigmoid() - targets) / 3)[known].detach())
