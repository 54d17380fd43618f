"""A few coordinates of long rows: where rows vary most, in units of how they vary there, and bounded."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sgoif.linalg.factor import factor_dtype

__all__ = ["Coordinates"]

_LEAST = 1e-9  # share of the largest variance below which a direction is rounding


@dataclass(frozen=True, slots=True, eq=False)
class Coordinates:
    """Principal coordinates of mean 0 and variance 1 over the rows that they were fitted to.

    A new row lies nowhere beyond the farthest of those, so that a few rows, however wild, move a mean but little. One
    that is not finite is put at the far end of every coordinate.

    >>> seen = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    >>> Coordinates.fit(seen, 4).of(torch.tensor([[0.5, 7.0], [9.0, 0.0]])).abs().tolist()
    [[0.5], [1.0]]
    """

    mean: Tensor  # [d]
    whitener: Tensor  # [d, k]
    low: Tensor  # [k]
    high: Tensor  # [k]

    @classmethod
    def fit(cls, rows: Tensor, most: int) -> Coordinates:
        """Find at most ``most`` directions of ``n`` rows, ``[n, d]``: ``O(nd · min(n, d))``."""
        wide = rows.to(factor_dtype(rows.device))
        mean = wide.mean(0)
        about = wide - mean
        variances, directions = _principal(about, most)
        whitener = directions / variances.sqrt()
        found = about @ whitener
        return cls(mean, whitener, found.amin(0), found.amax(0))

    def of(self, rows: Tensor) -> Tensor:
        """Coordinates of rows, ``[B, d] -> [B, k]``."""
        found = (rows.to(self.mean.dtype) - self.mean) @ self.whitener
        is_sound = found.isfinite().all(1, keepdim=True)
        return torch.where(is_sound, found.clamp(self.low, self.high), self.high)

    def to(self, device: torch.device | str) -> Coordinates:
        """Move it."""
        return Coordinates(*(part.to(device) for part in (self.mean, self.whitener, self.low, self.high)))


def _principal(about: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Largest variances, descending, and their directions ``[d, k]``, by the smaller of the two moment matrices."""
    n, d = about.shape
    if d <= n:
        values, directions = torch.linalg.eigh(about.mT @ about / n)
    else:
        values, sides = torch.linalg.eigh(about @ about.mT / n)
        directions = about.mT @ sides
    kept = min(most, int((values > _LEAST * values[-1]).sum()))
    directions = directions[:, -kept:].flip(1) if kept else directions[:, :0]
    return values[-kept:].flip(0) if kept else values[:0], directions / directions.norm(dim=0)
