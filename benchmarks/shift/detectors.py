"""Who listens to a stream: our sentinel, and two classical tests with and without a memory.

Each makes a row of numbers of every image, of which batches need only the sums: ours by its own calibrated level, the
others by a level that is set on usual streams of the measurement itself, better than a user could.

- *KS*: Kolmogorov and Smirnov's distance of the largest softmax of a batch from the calibration's, at 64 quantiles.
- *MMD*: the squared distance of mean features under a Gaussian kernel of median width (Gretton et al. 2012), by 256
  random Fourier features (Rahimi and Recht 2007).

"Windows" give a test our memory: the last 1, 2, 4, … batches, each statistic in units of its own spread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sgoif.adaptors.ood import Seen
from sgoif.adaptors.parts import StreamParts
from sgoif.adaptors.shift import Tail, longest_window
from sgoif.adaptors.usual import largest_over_windows, learn_tails, window_evidence

__all__ = ["DETECTORS", "OURS", "Listeners"]

Floats = NDArray[np.float64]

OURS = "sgoif"
DETECTORS = (OURS, "KS", "KS, windows", "MMD", "MMD, windows")
_GRID, _FOURIER = 64, 256


@dataclass(frozen=True)
class Listeners:
    """All detectors after one calibration: ``rows`` of images, and ``readings`` of streams, by detector."""

    parts: StreamParts
    tails: Mapping[str, Tail]
    calibrated: int
    batch_size: int
    quantiles: Tensor  # of the largest softmax, [64]
    below: Tensor  # their shares among the calibration images
    frequencies: Tensor  # [d, 128]
    embedding: Tensor  # mean of the calibration images, [256]

    @classmethod
    def fit(cls, seen: Seen, batch_size: int, seed: int) -> Listeners:
        parts, coordinates = StreamParts.fit(seen)
        tails = learn_tails(coordinates, parts.sizes, batch_size, seed=seed)
        top = _confidence(seen)
        quantiles = top.quantile(torch.arange(1, _GRID + 1, dtype=top.dtype) / (_GRID + 1))
        features = seen.features.double()
        width = torch.pdist(features[:500]).median()
        drawn = torch.randn(features.shape[1], _FOURIER // 2, generator=torch.Generator().manual_seed(seed))
        frequencies = drawn.double() / width
        below = (top[:, None] <= quantiles).double().mean(0)
        embedding = _fourier(features, frequencies).mean(0)
        return cls(parts, tails, len(top), batch_size, quantiles, below, frequencies, embedding)

    def rows(self, seen: Seen) -> Tensor:
        """Rows of images, ``[N, K]``, float32, of all detectors side by side."""
        below = (_confidence(seen)[:, None] <= self.quantiles).double() - self.below
        embedded = _fourier(seen.features.double(), self.frequencies) - self.embedding
        return torch.cat([self.parts.of(seen), below, embedded], 1).float()

    def readings(self, sums: Floats) -> dict[str, Floats]:
        """What each detector reads after each batch of streams, ``[S, T, K] -> [S, T]``."""
        ours, below, embedded = np.split(sums, np.cumsum([sum(self.parts.sizes.values()), _GRID]), 2)
        found = {OURS: self.rarity(ours).max(2)}
        longest = longest_window(self.calibrated, self.batch_size)
        for name, part, measure in (("KS", below, self._distance), ("MMD", embedded, self._square)):
            found[name] = measure(part, 1)
            found[f"{name}, windows"] = largest_over_windows(part, longest, measure)
        return found

    def rarity(self, sums: Floats) -> Floats:
        """Our reading by part, ``[S, T, parts]``: the logarithm of once in so many batches."""
        sizes = self.parts.sizes
        evidence = window_evidence(sums, self.batch_size, sizes, self.calibrated)
        tails = [self.tails[name] for name in sizes]
        found = [tail.log_once_in(0.0) + evidence[..., i] / tail.scale for i, tail in enumerate(tails)]
        return np.stack(found, 2) - np.log(len(tails))

    def _distance(self, totals: Floats, width: int) -> Floats:
        num = width * self.batch_size
        return np.asarray(np.abs(totals).max(-1) / num / (1 / num + 1 / self.calibrated) ** 0.5)

    def _square(self, totals: Floats, width: int) -> Floats:
        num = width * self.batch_size
        return np.asarray(np.square(totals).sum(-1) / num**2 / (1 / num + 1 / self.calibrated))


def _confidence(seen: Seen) -> Tensor:
    return seen.logits.double().softmax(1).amax(1)


def _fourier(features: Tensor, frequencies: Tensor) -> Tensor:
    angles = features @ frequencies
    return torch.cat([angles.cos(), angles.sin()], 1) / (_FOURIER / 2) ** 0.5
