"""What of a stream can move, as coordinates of each image: how unlike it is, its classes, its features.

- *unlike*: the out-of-distribution score (:mod:`sgoif.features.rule`), the energy and the confidence.
- *classes*: the predicted probabilities. Their mean moves with the mix of classes.
- *features*: what enters the layers, each pooled over positions and scaled to the same total variance. Noise, blur and
  compression move early layers long before a prediction changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sgoif.features.extraction import HeadFeatures
from sgoif.features.rule import OodRule
from sgoif.linalg.factor import factor_dtype

__all__ = ["Coordinates", "StreamParts"]

# Directions of a part. With 16 small noise and JPEG took twice the images to be found; 64 gained a little there and
# lost it at shifts of classes (development set).
_MOST = 32
_LEAST = 1e-9  # share of the largest variance below which a direction is rounding
_TINY = 1e-12


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


@dataclass(frozen=True, slots=True, eq=False)
class StreamParts:
    """Coordinates of images, fitted to in-distribution ones: no labels."""

    rule: OodRule
    layer_scales: Mapping[str, float]  # the head's input is called ""
    coordinates: Mapping[str, Coordinates]  # by part

    @classmethod
    def fit(cls, seen: HeadFeatures) -> tuple[StreamParts, Tensor]:
        """Fit to features of in-distribution images; also give their coordinates, ``[n, K]``, as if they were new."""
        rule = OodRule.fit(seen)
        scales = {name: _total_spread(rows) for name, rows in _layers(seen).items()}
        raw = _raw(rule, scales, seen, is_fitted=True)
        made = cls(rule, scales, {name: Coordinates.fit(rows, _MOST) for name, rows in raw.items()})
        return made, made._join(raw)

    def of(self, seen: HeadFeatures) -> Tensor:
        """Coordinates of new images, ``[B, K]``, part after part."""
        return self._join(_raw(self.rule, self.layer_scales, seen, is_fitted=False))

    @property
    def sizes(self) -> dict[str, int]:
        """The number of coordinates of each part; a part in which in-distribution images do not differ is left out."""
        widths = {name: part.whitener.shape[1] for name, part in self.coordinates.items()}
        return {name: width for name, width in widths.items() if width}

    def to(self, device: torch.device | str) -> StreamParts:
        """Move it."""
        moved = {name: part.to(device) for name, part in self.coordinates.items()}
        return StreamParts(self.rule.to(device), self.layer_scales, moved)

    def _join(self, raw: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([self.coordinates[name].of(rows) for name, rows in raw.items()], 1)


def _raw(rule: OodRule, scales: Mapping[str, float], seen: HeadFeatures, *, is_fitted: bool) -> dict[str, Tensor]:
    score = rule.scores(seen, is_fitted=is_fitted)
    logits = seen.logits.to(score.dtype)
    logs = logits.log_softmax(1)
    features = [rows.to(score.dtype) / scales[name] for name, rows in _layers(seen).items()]
    return {
        "unlike": torch.stack([score, logits.logsumexp(1), logs.amax(1)], 1),
        "classes": logs.exp(),
        "features": torch.cat(features, 1),
    }


def _layers(seen: HeadFeatures) -> dict[str, Tensor]:
    return {"": seen.features, **seen.pooled}


def _total_spread(rows: Tensor) -> float:
    return max(float(rows.float().var(0, correction=0).sum().sqrt()), _TINY)
