"""Tags: several yes-or-no labels per example, each with a binary cross-entropy of its own.

Targets are ``[B, C]``: 1 for a tag that is given, 0 for one that is not, NaN or a negative number where nobody knows.
What is unknown adds nothing, neither to a loss nor to a count.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["bits_of", "example_losses", "tag_losses"]


def bits_of(targets: Tensor) -> tuple[Tensor, Tensor]:
    """Which tags are present and which are absent, bool ``[B, C]`` each; neither where a target is unknown.

    >>> present, absent = bits_of(torch.tensor([[1.0, 0.0, float("nan"), -1.0]]))
    >>> present.tolist(), absent.tolist()
    ([[True, False, False, False]], [[False, True, False, False]])
    """
    return targets > 0.5, (targets >= 0) & (targets <= 0.5)


def tag_losses(logits: Tensor, present: Tensor) -> Tensor:
    """Binary cross-entropy of each tag, in the shape of the logits."""
    return F.softplus(torch.where(present, -logits, logits))


def example_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over the C tags, ``[B]``, so that the mean over a batch is that of ``binary_cross_entropy_with_logits``.

    Unknown tags count as zero and in C: mask a loss by them the same way, or pass your own.
    """
    present, absent = bits_of(targets)
    return (tag_losses(logits, present) * (present | absent)).mean(1)
