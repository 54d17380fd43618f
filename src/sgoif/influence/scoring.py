"""The score formula. Its sign and units are stated here, once.

``I(i, v) = - φ_v · g_i`` with ``φ_v ≈ H⁻¹ g_v``. **Positive means harmful**: giving example i more weight raises anchor
v's loss. The unit is anchor loss per unit of weight; removing example i changes the anchor's mean loss by ``-I/n``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sgoif.errors import SgoifError

__all__ = ["Scores", "Weighting", "most_probable", "score"]

Weighting = Literal["equal", "confidence"]


@dataclass(frozen=True, slots=True)
class Scores:
    """What one visit says about each example of a batch."""

    harm: Tensor  # Σ_v w_v I(i, v), [B]
    worst: Tensor  # max over the anchors that are not of the given class, [B]
    worst_anchor: Tensor  # which anchor that is; its class is the suggested label, [B]
    own: Tensor  # I against the anchor of the given class, [B]
    confidence: Tensor  # of `harm`: the mean c_v over known anchors, [B]
    confidence_worst: Tensor  # of `worst`: c of that anchor, [B]


def score(
    dots: Tensor,
    labels: Tensor,
    confidence: Tensor | None = None,
    *,
    known: Tensor | None = None,
    candidates: Tensor | None = None,
    weighting: Weighting = "equal",
) -> Scores:
    """Turn inner products into scores, for one anchor per class.

    Args:
        dots: ``⟨φ_v, g_i⟩``, ``[B, K]``, column v belonging to class v.
        labels: given classes, ``[B]``.
        confidence: ``c_v``, ``[K]``; all 1 by default.
        weighting: of the anchors in ``harm``: ``"equal"``, or ``"confidence"`` for ``w_v = c_v / Σc`` (equal where all
            are zero). Equal weights found 1.4-1.7 AP more on the development set; the gate does its work over time.
        known: which classes have an anchor, ``[K]``; the others are skipped.
        candidates: classes that ``worst`` may name, ``[B, M]``, see :func:`most_probable`; all of them by default.

    >>> found = score(torch.tensor([[-1.0, 2.0, -4.0]]), torch.tensor([0]))
    >>> found.worst.item(), found.worst_anchor.item(), found.own.item()
    (4.0, 2, 1.0)
    """
    num_anchors = dots.shape[1]
    if num_anchors < 2:
        raise SgoifError(f"scoring by class needs at least two anchors, got {num_anchors}.")
    influence = -dots
    present = dots.new_ones(num_anchors) if known is None else known.to(dots.dtype)
    trust = present if confidence is None else confidence.to(dots.dtype) * present
    weights = torch.where(trust.sum() == 0, present, trust) if weighting == "confidence" else present
    weights = weights / weights.sum().clamp_min(1e-30)
    eligible = present.bool().expand_as(influence)
    if candidates is not None:
        eligible = eligible & torch.zeros_like(eligible).scatter(1, candidates, True)
    eligible = eligible & torch.ones_like(eligible).scatter(1, labels[:, None], False)
    worst, worst_anchor = influence.masked_fill(~eligible, float("-inf")).max(1)
    worst = torch.where(worst == float("-inf"), torch.zeros_like(worst), worst)
    mean_confidence = trust.sum() / present.sum().clamp_min(1e-30)
    return Scores(
        harm=influence @ weights,
        worst=worst,
        worst_anchor=worst_anchor,
        own=influence.gather(1, labels[:, None])[:, 0],
        confidence=mean_confidence.expand(len(labels)),
        confidence_worst=trust[worst_anchor],
    )


def most_probable(outputs: Tensor, count: int = 5) -> Tensor:
    """The classes worth suggesting when there are many: the ``count`` largest outputs, ``[B, count]``."""
    return outputs.topk(min(count, outputs.shape[1]), 1).indices
