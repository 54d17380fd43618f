"""Influence of one tag of one example: a head over C tags is C logistic regressions on the same features.

The gradient of the pair (i, c) is ``(p_ic - y_ic) x_i`` at the head's row c and zero elsewhere. Curvature is
``H = diag(v) ⊗ A`` with ``A = E[x xᵀ]`` and ``v_c = E[p (1 - p)]``, each factor damped. Every tag has two anchors of
its own, the hold-out examples that have it and those that have not, and

    I((i, c), s) = -(p_ic - y_ic) φ_cs · x_i,   φ_cs = A⁻¹ g_cs / v_c,   s in {absent, present}.

All of it is products ``[B, I] × [I, C]``; there is never a tensor ``[B, C, I]``. The sign is that of
:mod:`sgoif.influence.scoring`: positive harms.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sgoif.linalg import cholesky
from sgoif.tasks.multilabel import bits_of, tag_losses

__all__ = ["MultilabelJudge", "NoticedTags", "group_gradients", "notice", "refit_multilabel", "solve_multilabel"]

MOST_PRESENT = 32  # given tags of an example that are looked at, those with the highest loss first


@dataclass(frozen=True, slots=True)
class MultilabelJudge:
    """All that the signals of a pair depend on, beside the example itself."""

    solved: Tensor  # φ, [2, C, I]: absent, present
    plain: Tensor  # g, the same with H = I
    probe: Tensor  # the head re-fitted on the hold-out, [C, I]

    def products(self, features: Tensor) -> Tensor:
        """Inner products of features ``[B, I]`` with the five kinds of row, ``[B, 5, C]``."""
        heads = torch.cat([self.solved, self.plain, self.probe[None]])
        found = features.to(heads.dtype) @ heads.flatten(0, 1).mT
        return found.reshape(len(features), len(heads), -1)

    @staticmethod
    def signals(logits: Tensor, products: Tensor, present: Tensor) -> Tensor:
        """The signals of pairs under given bits, ``[B, W, S]``, columns as :data:`sgoif.records.TAG_SIGNALS`.

        Args:
            logits: ``[B, W]``.
            products: the same columns of :meth:`products`, ``[B, 5, W]``.
            present: the bits that are tried, bool ``[B, W]``.
        """
        sign = torch.where(present, 1.0, -1.0).to(logits.dtype)
        loss, error = tag_losses(logits, present), logits.sigmoid() - present.to(logits.dtype)
        columns = [loss, sign * logits, (sign * logits).sigmoid()]
        off, on, off_plain, on_plain = (-error[:, None] * products[:, :4]).unbind(1)  # influence on each group
        columns += [(off + on) / 2, torch.where(present, off, on), (off_plain + on_plain) / 2]
        probe = sign * products[:, 4]
        return torch.stack([*columns, F.softplus(-probe) - loss, probe], -1)


@dataclass(frozen=True, slots=True)
class NoticedTags:
    """The pairs of a batch that are worth keeping: given tags, and the absent ones that the model most believes in."""

    tags: Tensor  # [B, W]; -1 where an example has fewer
    present: Tensor  # their bits, bool [B, W]


def notice(logits: Tensor, targets: Tensor, most_absent: int) -> NoticedTags:
    """Choose pairs of logits and targets ``[B, C]`` without waiting for the device, in a fixed number of columns.

    >>> found = notice(torch.tensor([[3.0, -1.0, 2.0]]), torch.tensor([[1.0, 0.0, 0.0]]), most_absent=1)
    >>> found.tags.tolist()
    [[0, -1, -1, 2]]
    """
    present, absent = bits_of(targets)
    low = float("-inf")
    given = (-logits).masked_fill(~present, low).topk(min(MOST_PRESENT, logits.shape[1]), 1)
    missed = logits.masked_fill(~absent, low).topk(min(most_absent, logits.shape[1]), 1)
    values, tags = (torch.cat([a, b], 1) for a, b in zip(given, missed, strict=True))
    bits = torch.zeros_like(tags, dtype=torch.bool)
    bits[:, : given.indices.shape[1]] = True
    return NoticedTags(tags.masked_fill(values == low, -1), bits)


def group_gradients(features: Tensor, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Mean gradients ``[2, C, I]`` of the pairs without and with each tag, and how many there are, ``[2, C]``."""
    present, absent = bits_of(targets)
    bits = torch.stack([absent, present]).to(features.dtype)  # [2, B, C]
    error = logits.sigmoid().to(features.dtype) - bits[1]
    counts = bits.sum(1)
    return (bits * error).mT @ features / counts.clamp_min(1.0)[:, :, None], counts


def solve_multilabel(gradients: Tensor, inputs: Tensor, spread: Tensor, damping: float) -> Tensor:
    """``H⁻¹ g`` of gradients ``[2, C, I]`` for ``H = (diag(v) + γ mean(v)) ⊗ (A + γ tr(A)/I)``.

    Inputs are ``A`` ``[I, I]``, spread is ``v`` ``[C]``, damping ``γ``.
    """
    eye = torch.eye(len(inputs), dtype=inputs.dtype, device=inputs.device)
    factor = cholesky(inputs + damping * inputs.diagonal().mean() * eye)
    curved = (spread + damping * spread.mean()).clamp_min(torch.finfo(spread.dtype).tiny)
    solved = factor.solve(gradients.flatten(0, 1).mT).mT.reshape(gradients.shape)
    return (solved / curved[:, None]).to(gradients.dtype)


def refit_multilabel(
    features: Tensor, targets: Tensor, weight: Tensor, trust: Tensor, *, ridge: float = 1e-2, iterations: int = 15
) -> Tensor:
    """Re-fit the head ``[C, I]`` on the hold-out, held near where it is: :func:`sgoif.influence.refit_head` for tags.

    The Hessian of a logistic regression never exceeds ``A / 4``, so the objective falls at every iteration.

    Args:
        features: with the bias column, ``[M, I]``.
        targets: ``[M, C]``.
        weight: the head's current weights ``W₀``.
        trust: weight of each example, ``[M]``; those with none are left out.
        ridge: how strongly the head is held, relative to the features' mean square.
        iterations: products with the features.
    """
    counted = trust > 0
    features, shares = features[counted], (trust / trust.sum().clamp_min(1e-12)).to(features.dtype)[counted]
    present, absent = bits_of(targets[counted])
    known = (present | absent).to(features.dtype) * shares[:, None]
    moments = features.mT @ (features * shares[:, None])
    mean = moments.diagonal().mean()
    eye = torch.eye(len(moments), device=moments.device, dtype=moments.dtype)
    factor = cholesky(0.25 * moments + (ridge + 1e-6) * mean * eye)
    moved = start = weight.to(features.dtype)
    for _ in range(iterations):
        error = ((features @ moved.mT).sigmoid() - present.to(features.dtype)) * known
        gradient = error.mT @ features + ridge * mean * (moved - start)
        moved = moved - factor.solve(gradient.mT).mT.to(moved.dtype)
    return moved
