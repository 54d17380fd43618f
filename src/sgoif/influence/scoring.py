"""The score formula. Its sign and units are stated here, once.

``I(i, v) = - φ_v · g_i`` with ``φ_v ≈ H⁻¹ g_v``. **Positive means harmful**: giving example i more weight raises
anchor v's loss. The unit is anchor loss per unit of weight; removing example i changes the anchor's mean loss by
``-I/n``.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sgoif.errors import SgoifError

__all__ = ["Scores", "score"]


@dataclass(frozen=True, slots=True)
class Scores:
    """What one visit says about each example of a batch."""

    harm: Tensor  # Σ_v w_v I(i, v), [B]
    worst: Tensor  # max over the anchors that are not of the given class, [B]
    worst_anchor: Tensor  # which anchor that is; its class is the suggested label, [B]
    own: Tensor  # I against the anchor of the given class, [B]


def score(dots: Tensor, labels: Tensor, confidence: Tensor | None = None) -> Scores:
    """Turn inner products into scores, for one anchor per class.

    Args:
        dots: ``⟨φ_v, g_i⟩``, ``[B, K]``, column v belonging to class v.
        labels: given classes, ``[B]``.
        confidence: ``c_v``, ``[K]``; the weights are ``c / Σc``, equal where all confidences are zero or none are
        given.

    >>> import torch
    >>> found = score(torch.tensor([[-1.0, 2.0, -4.0]]), torch.tensor([0]))
    >>> found.worst.item(), found.worst_anchor.item(), found.own.item()
    (4.0, 2, 1.0)
    """
    num_anchors = dots.shape[1]
    if num_anchors < 2:
        raise SgoifError(f"scoring by class needs at least two anchors, got {num_anchors}.")
    influence = -dots
    weights = dots.new_ones(num_anchors) if confidence is None else confidence.to(dots.dtype)
    total = weights.sum()
    weights = (weights + (total == 0)) / (total + num_anchors * (total == 0))
    others = influence.scatter(1, labels[:, None], float("-inf"))
    worst, worst_anchor = others.max(1)
    return Scores(influence @ weights, worst, worst_anchor, influence.gather(1, labels[:, None])[:, 0])
