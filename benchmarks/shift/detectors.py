"""Who listens to a stream: our sentinel, and two classical tests with and without a memory.

Each makes a row of numbers of every image, of which batches need only the sums: ours by its own calibrated level, the
others by a level that is set on usual streams of the measurement itself, better than a user could.

- *KS*: Kolmogorov and Smirnov's distance of the largest softmax of a batch from the calibration's, at 64 quantiles.
- *MMD*: the squared distance of mean features under a Gaussian kernel of median width (Gretton et al. 2012), by 256
  random Fourier features (Rahimi and Recht 2007).

"Windows" give a test our memory: the last 1, 2, 4, … batches, each statistic in units of its own spread. "All layers"
gives it our eyes: what enters every layer, pooled and scaled as ours is, beside what enters the head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sgoif.features.extraction import HeadFeatures
from sgoif.shift.null_streams import largest_over_windows, learn_tails, window_evidence
from sgoif.shift.sequential import Tail, longest_window
from sgoif.shift.statistics import StreamParts

Floats = NDArray[np.float64]

OURS = "sgoif"
DETECTORS = (OURS, "KS", "KS, windows", "MMD", "MMD, windows", "MMD of all layers, windows")
_GRID, _FOURIER = 64, 256


@dataclass(frozen=True)
class _Kernel:
    """Random Fourier features of a Gaussian kernel, about their mean over the calibration images."""

    frequencies: Tensor  # [d, 128]
    mean: Tensor  # [256]

    @classmethod
    def fit(cls, rows: Tensor, seed: int) -> _Kernel:
        drawn = torch.randn(rows.shape[1], _FOURIER // 2, generator=torch.Generator().manual_seed(seed))
        plain = cls(drawn.double() / torch.pdist(rows[:500]).median(), torch.zeros(_FOURIER, dtype=torch.float64))
        return cls(plain.frequencies, plain.of(rows).mean(0))

    def of(self, rows: Tensor) -> Tensor:
        angles = rows @ self.frequencies
        return torch.cat([angles.cos(), angles.sin()], 1) / (_FOURIER / 2) ** 0.5 - self.mean


@dataclass(frozen=True)
class Listeners:
    """All detectors after one calibration: ``rows`` of images, and ``readings`` of streams, by detector."""

    parts: StreamParts
    tails: Mapping[str, Tail]
    calibrated: int
    batch_size: int
    quantiles: Tensor  # of the largest softmax, [64]
    below: Tensor  # their shares among the calibration images
    kernels: Mapping[str, _Kernel]  # of the head's input, and of all layers

    @classmethod
    def fit(cls, seen: HeadFeatures, batch_size: int, seed: int) -> Listeners:
        parts, coordinates = StreamParts.fit(seen)
        tails = learn_tails(coordinates, parts.sizes, batch_size, seed=seed)
        top = _confidence(seen)
        quantiles = top.quantile(torch.arange(1, _GRID + 1, dtype=top.dtype) / (_GRID + 1))
        below = (top[:, None] <= quantiles).double().mean(0)
        kernels = {name: _Kernel.fit(rows, seed) for name, rows in _features(seen, parts.layer_scales).items()}
        return cls(parts, tails, len(top), batch_size, quantiles, below, kernels)

    def rows(self, seen: HeadFeatures) -> Tensor:
        """Rows of images, ``[N, K]``, float32, of all detectors side by side."""
        below = (_confidence(seen)[:, None] <= self.quantiles).double() - self.below
        features = _features(seen, self.parts.layer_scales)
        embedded = [kernel.of(features[name]) for name, kernel in self.kernels.items()]
        return torch.cat([self.parts.of(seen), below, *embedded], 1).float()

    def readings(self, sums: Floats) -> dict[str, Floats]:
        """What each detector reads after each batch of streams, ``[S, T, K] -> [S, T]``."""
        ends = np.cumsum([sum(self.parts.sizes.values()), _GRID, _FOURIER])
        ours, below, head, layers = np.split(sums, ends, 2)
        longest = longest_window(self.calibrated, self.batch_size)
        return {
            OURS: self.rarity(ours).max(2),
            "KS": self._distance(below, 1),
            "KS, windows": largest_over_windows(below, longest, self._distance),
            "MMD": self._square(head, 1),
            "MMD, windows": largest_over_windows(head, longest, self._square),
            "MMD of all layers, windows": largest_over_windows(layers, longest, self._square),
        }

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


def _confidence(seen: HeadFeatures) -> Tensor:
    return seen.logits.double().softmax(1).amax(1)


def _features(seen: HeadFeatures, scales: Mapping[str, float]) -> dict[str, Tensor]:
    layers = {"": seen.features, **seen.pooled}
    everything = torch.cat([rows.double() / scales[name] for name, rows in layers.items()], 1)
    return {"head": seen.features.double(), "layers": everything}
