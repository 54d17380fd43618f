"""Leverage: how unlike those seen before a vector is, in units of how they vary. Tensors in, tensors out.

``D(x) = (x − μ)ᵀ (Σ + λI)⁻¹ (x − μ)`` with ``λ`` a share of Σ's mean eigenvalue. About the origin (``μ = 0``, Σ the
second moment) it is the input side of a head's self-influence: ``gᵀF⁻¹g = (δᵀG⁻¹δ) · D`` for a K-FAC block.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sgoif.linalg.factor import cholesky, factor_dtype

__all__ = ["Leverage"]

_TINY = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class Leverage:
    """Leverage over ``n`` examples, factorised once in float64: ``O(d²)`` to hold and per vector.

    >>> seen = torch.tensor([[1.0], [-1.0]])  # of variance 1, to which the damping adds 1
    >>> Leverage.fit(seen, damping=1.0, centred=True).of(torch.tensor([[3.0]])).round(decimals=6).tolist()
    [4.5]
    """

    mean: Tensor  # μ, [d]
    whitener: Tensor  # L⁻ᵀ of Σ + λI = LLᵀ, [d, d]
    count: int  # n
    is_centred: bool

    @classmethod
    def fit(cls, rows: Tensor, *, damping: float, centred: bool) -> Leverage:
        """Factorise the (co)variance of ``rows``, ``[n, d]``: ``O(nd² + d³)``."""
        wide = rows.to(factor_dtype(rows.device))
        mean = wide.mean(0) if centred else torch.zeros_like(wide[0])
        about = wide - mean
        moment = about.mT @ about / len(rows)
        level = moment.diagonal().mean().clamp_min(_TINY)  # of a layer whose input never changes
        eye = torch.eye(len(mean), dtype=wide.dtype, device=wide.device)
        # the least that keeps Cholesky sound where there are fewer rows than columns
        lower = cholesky(moment + max(damping, 1e-10) * level * eye).lower
        whitener = torch.linalg.solve_triangular(lower, eye, upper=False).mT
        return cls(mean, whitener, len(rows), centred)

    def of(self, rows: Tensor) -> Tensor:
        """Leverage of new vectors, ``[B, d] -> [B]``."""
        return ((rows.to(self.mean.dtype) - self.mean) @ self.whitener).square().sum(1).clamp_min(_TINY)

    def of_seen(self, rows: Tensor) -> Tensor:
        """Leverage of vectors that the fit has seen, each as if it had not: Sherman and Morrison, no second fit.

        Without it a vector's own share in Σ makes those seen look more usual than any new one will.
        """
        own, n = self.of(rows), self.count
        if not self.is_centred:
            return own / (1 - own / n).clamp_min(_TINY)
        return (n / (n - 1)) ** 2 * own / (1 - own / (n - 1)).clamp_min(_TINY)

    def to(self, device: torch.device | str) -> Leverage:
        """Move it."""
        return Leverage(self.mean.to(device), self.whitener.to(device), self.count, self.is_centred)
