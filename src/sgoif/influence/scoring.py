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

__all__ = ["KnownAnchors", "Scores", "Weighting", "most_probable", "near_classes", "score", "score_near"]

Weighting = Literal["equal", "confidence", "paper"]


@dataclass(frozen=True, slots=True)
class Scores:
    """What one visit says about each example of a batch; ``[B]`` each, or ``[B, S]`` for S kinds of direction."""

    harm: Tensor  # Σ_v w_v I(i, v)
    worst: Tensor  # max over the anchors that are not of the given class
    worst_anchor: Tensor  # which anchor that is; its class is the suggested label
    own: Tensor  # I against the anchor of the given class
    confidence: Tensor  # of `harm`: the mean c_v over known anchors, [B]
    confidence_worst: Tensor  # of `worst`: c of that anchor


@dataclass(frozen=True, slots=True)
class KnownAnchors:
    """Which anchors there are, in the forms that scoring needs; made at a refresh, used at every step."""

    present: Tensor  # 1 or 0, [K]
    absent: Tensor  # bool, [K]
    weights: Tensor  # equal over those present, summing to 1, [K]

    @classmethod
    def of(cls, known: Tensor, dtype: torch.dtype) -> KnownAnchors:
        """From a mask ``[K]``."""
        present = known.to(dtype)
        return cls(present, ~known, present / present.sum().clamp_min(1e-30))


def score(
    dots: Tensor,
    labels: Tensor,
    confidence: Tensor | None = None,
    *,
    known: Tensor | KnownAnchors | None = None,
    weighting: Weighting = "equal",
) -> Scores:
    """Turn inner products into scores, for one anchor per class.

    Args:
        dots: ``⟨φ_v, g_i⟩``, ``[B, K]``, column v belonging to class v; or ``[B, S, K]`` for S kinds of direction
            (tracked, plain, solved), which are then scored side by side.
        labels: given classes, ``[B]``.
        confidence: ``c_v``, ``[K]``, or ``[B, K]`` where it differs between examples; all 1 by default.
        known: which classes have an anchor, ``[K]``; the others are skipped. All by default.
        weighting: of the anchors in ``harm``: ``"equal"``, ``"confidence"`` for ``w_v = c_v / Σc`` (equal where all are
            zero), or ``"paper"`` for ``c_v² / Σc``, confidence in the weight and in the score. Equal weights found
            1.4-1.7 AP more on the development set; the gate does its work over time.

    >>> found = score(torch.tensor([[-1.0, 2.0, -4.0]]), torch.tensor([0]))
    >>> found.worst.item(), found.worst_anchor.item(), found.own.item()
    (4.0, 2, 1.0)
    """
    num_anchors = dots.shape[-1]
    if num_anchors < 2:
        raise SgoifError(f"scoring by class needs at least two anchors, got {num_anchors}.")
    influence, given = -dots, _beside(labels[:, None], dots)
    if not isinstance(known, KnownAnchors):
        everyone = torch.ones(num_anchors, dtype=torch.bool, device=dots.device)
        known = KnownAnchors.of(everyone if known is None else known, dots.dtype)
    trust = known.present if confidence is None else confidence.to(dots.dtype) * known.present
    trust = trust.expand(len(labels), -1)
    weights = known.weights
    if weighting != "equal":
        weights = torch.where(trust.sum(1, keepdim=True) == 0, known.present, trust)
        weights = weights / weights.sum(1, keepdim=True).clamp_min(1e-30)
        weights = weights * trust if weighting == "paper" else weights
    blocked = known.absent.expand(len(labels), -1).scatter(1, labels[:, None], True)
    worst, worst_anchor = _worst(influence, _beside(blocked, dots))
    return Scores(
        harm=influence @ weights if weights.dim() == 1 else (influence * _beside(weights, dots)).sum(-1),
        worst=worst,
        worst_anchor=worst_anchor,
        own=influence.gather(-1, given)[..., 0],
        confidence=trust @ known.weights,
        confidence_worst=_beside(trust, dots).gather(-1, worst_anchor[..., None])[..., 0],
    )


def score_near(dots: Tensor, classes: Tensor, known: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``worst``, ``worst_anchor`` and ``own`` where only some classes of each example were looked at.

    Args:
        dots: ``⟨φ_v, g_i⟩``, ``[B, S, N]`` for S kinds of direction.
        classes: of the columns, ``[B, N]``, from :func:`near_classes`: the given one comes last.
        known: which classes have an anchor, ``[K]``.

    Returns:
        Three tensors ``[B, S]``.
    """
    influence = -dots
    blocked = (classes == classes[:, -1:]) | ~known[classes]
    worst, column = _worst(influence, blocked[:, None])
    return worst, classes.gather(1, column), influence[..., -1]


def most_probable(outputs: Tensor, count: int = 5) -> Tensor:
    """The classes worth suggesting when there are many: the ``count`` largest outputs, ``[B, count]``."""
    return outputs.topk(min(count, outputs.shape[1]), 1).indices


def near_classes(outputs: Tensor, labels: Tensor, count: int = 5) -> Tensor:
    """The classes to look at when there are many: the most probable ones, then the given one, ``[B, count + 1]``."""
    return torch.cat([most_probable(outputs, count), labels[:, None]], 1)


def _worst(influence: Tensor, blocked: Tensor) -> tuple[Tensor, Tensor]:
    """The largest influence that is not blocked, and its column; 0 and column 0 where all are."""
    worst, column = influence.masked_fill(blocked, float("-inf")).max(-1)
    return worst.nan_to_num(nan=float("nan"), posinf=float("inf"), neginf=0.0), column


def _beside(columns: Tensor, dots: Tensor) -> Tensor:
    """``[B, n]`` as ``[B, S, n]`` where ``dots`` has S kinds, the same for each."""
    return columns if dots.dim() == 2 else columns[:, None].expand(-1, dots.shape[1], -1)
