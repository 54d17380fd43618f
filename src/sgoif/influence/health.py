"""How sound the anchors are: whether they say different things, whether they see the examples, and against which H.

Three numbers, all from what a refresh has at hand. With one anchor per class the directions are dependent by their
nature (the gradients of all classes nearly sum to zero), so a small eigenvalue is a fact to report and no alarm.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["AnchorHealth", "coverage", "curvature_gap", "gram_health"]


@dataclass(frozen=True, slots=True)
class AnchorHealth:
    """One refresh's health, on the device."""

    smallest_eigenvalue: Tensor  # of the Gram matrix of normalised directions, 0-d
    largest_cosine: Tensor  # between two anchors, 0-d; above 0.98 they are one anchor twice
    coverage: Tensor  # share of the examples' gradients that the directions see, 0-d
    curvature_gap: Tensor  # E_curv: |(H_true - H_t) φ_v| / |g_v| at the head, [K]


def gram_health(directions: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smallest eigenvalue and the largest cosine between two of the normalised directions, ``[P, K]``.

    >>> smallest, cosine = gram_health(torch.tensor([[1.0, 1.0], [0.0, 1.0]]))
    >>> round(float(cosine), 3), round(float(smallest), 3)
    (0.707, 0.293)
    """
    sizes = torch.linalg.vector_norm(directions, dim=0).clamp_min(torch.finfo(directions.dtype).tiny)
    unit = directions / sizes
    gram = unit.mT @ unit
    eigenvalues: Tensor = torch.linalg.eigvalsh(gram.double())
    others = gram - torch.diag_embed(gram.diagonal())
    return eigenvalues[0].to(gram.dtype), others.max()


def coverage(dots: Tensor, sizes2: Tensor, directions: Tensor) -> Tensor:
    """Return the mean share of ``|g_z|²`` that lies in the span of the directions.

    ``1 - |g_z - P g_z|² / |g_z|²`` with ``|P g|² = dᵀ (ΦᵀΦ)⁻¹ d`` for ``d = Φᵀ g``, so that no gradient is ever made.

    Args:
        dots: ``φ_v · g_z``, ``[B, K]``.
        sizes2: ``|g_z|²``, ``[B]``.
        directions: ``Φ``, ``[P, K]``.

    >>> coverage(torch.tensor([[2.0]]), torch.tensor([8.0]), torch.tensor([[1.0], [0.0]]))
    tensor(0.5000)
    """
    gram = (directions.mT @ directions).double()
    inverse = torch.linalg.pinv(gram, hermitian=True, rtol=1e-6)
    seen = torch.einsum("bk,kl,bl->b", dots.double(), inverse, dots.double())
    known = sizes2 > 0
    share = torch.where(known, seen / torch.where(known, sizes2, 1.0), torch.zeros_like(seen)).clamp(0, 1)
    return (share.sum() / known.sum().clamp_min(1)).to(dots.dtype)


def curvature_gap(features: Tensor, outputs: Tensor, directions: Tensor, products: Tensor, sizes: Tensor) -> Tensor:
    """Return ``|(H_true - H_t) φ_v| / |g_v|`` at a linear head, with the Gauss-Newton matrix of some examples as truth.

    For cross-entropy ``H_true φ = mean_i (diag(p_i) - p_i p_iᵀ) Φ a_i a_iᵀ``: exact at the head, from features and
    outputs alone.

    Args:
        features: ``a``, ``[R, I]``, with the bias column.
        outputs: logits, ``[R, C]``.
        directions: ``Φ_v``, ``[K, C, I]``.
        products: ``H_t Φ_v``, the surrogate's, ``[K, C, I]``.
        sizes: ``|g_v|``, ``[K]``.
    """
    p = outputs.softmax(1).to(features.dtype)
    pushed = torch.einsum("kci,ri->krc", directions, features)
    curved = p * (pushed - (p * pushed).sum(2, keepdim=True))
    true = torch.einsum("krc,ri->kci", curved, features) / len(features)
    gap: Tensor = torch.linalg.vector_norm((true - products).flatten(1), dim=1)
    return gap / sizes.clamp_min(torch.finfo(gap.dtype).tiny)
