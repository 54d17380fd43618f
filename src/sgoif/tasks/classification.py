"""Classification by cross-entropy: per-example losses, and the gradient at the logits that they imply.

Targets are class numbers ``[B]`` or probabilities ``[B, C]``; label smoothing and class weights mean what they mean in
``torch.nn.functional.cross_entropy``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from sgoif.gradients.contractions import widen

__all__ = [
    "cross_entropy",
    "example_losses",
    "is_smoothed",
    "logit_gradients",
    "margins",
    "smooth_once",
    "target_probabilities",
]


def target_probabilities(targets: Tensor, like: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Targets as probabilities ``[B, C]`` in the logits' dtype, smoothed."""
    num_classes = like.shape[1]
    hot = (F.one_hot(targets, num_classes) if targets.dim() == 1 else targets).to(like.dtype)
    return hot * (1 - label_smoothing) + label_smoothing / num_classes if label_smoothing else hot


def is_smoothed(targets: Tensor, label_smoothing: float) -> Tensor:
    """Which rows of probabilities ``[B, C]`` are smoothed already: no class of theirs is (nearly) impossible."""
    return targets.amin(1) > 0.5 * label_smoothing / targets.shape[1]


def smooth_once(targets: Tensor, label_smoothing: float) -> Tensor:
    """Smooth the rows of ``[B, C]`` that are not: Mixup's usual implementation smooths while it mixes."""
    if not label_smoothing:
        return targets
    smooth = targets * (1 - label_smoothing) + label_smoothing / targets.shape[1]
    return smooth.where(~is_smoothed(targets, label_smoothing)[:, None], targets)


def example_losses(
    logits: Tensor, targets: Tensor, *, label_smoothing: float = 0.0, class_weights: Tensor | None = None
) -> Tensor:
    """Cross-entropy of each example, ``[B]``, not divided by anything."""
    return F.cross_entropy(logits, targets, weight=class_weights, label_smoothing=label_smoothing, reduction="none")


def logit_gradients(
    logits: Tensor, targets: Tensor, *, label_smoothing: float = 0.0, class_weights: Tensor | None = None
) -> Tensor:
    """``∂ loss_i / ∂ logits_i``, ``[B, C]``: ``p Σ_c w_c t_c − w ∘ t``, which is ``p − t`` without weights."""
    t = target_probabilities(targets, logits, label_smoothing=label_smoothing)
    p = logits.softmax(1)
    if class_weights is None:
        return p * t.sum(1, keepdim=True) - t
    weighted = t * class_weights.to(logits.dtype)
    return p * weighted.sum(1, keepdim=True) - weighted


def margins(logits: Tensor, labels: Tensor) -> Tensor:
    """Logit of the given label minus the largest other one, ``[B]``; its mean over visits is AUM."""
    given = logits.gather(1, labels[:, None])
    others = logits.scatter(1, labels[:, None], float("-inf"))
    return given[:, 0] - others.amax(1)


def cross_entropy(label_smoothing: float) -> Callable[[Tensor, Tensor], Tensor]:
    """Per-example losses of logits and classes or probabilities."""

    def losses(outputs: Tensor, targets: Tensor) -> Tensor:
        if targets.dim() == 2:
            return example_losses(widen(outputs), smooth_once(targets, label_smoothing))
        return example_losses(widen(outputs), targets, label_smoothing=label_smoothing)

    return losses
