"""Streams in which nothing changes, played from the calibration images, to learn how often they look as if it had.

In each, the calibration is drawn anew (with replacement, as many images), its means and variances, and so is every
batch: what comes out is the rate over draws of both, for this network, these images and this batch size. The highest
evidence of a stretch, beyond its 90% quantile, is about exponential; the fit gives rates too rare to be counted.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sgoif.shift.sequential import Parts, Tail, longest_window, measure_evidence, windows_up_to
from sgoif.types import Floats

__all__ = ["fit_tail", "largest_over_windows", "learn_tails", "window_evidence"]


_STREAMS = 2_000  # rates come out within 20%: the tail begins with a tenth of them
_BEYOND = 0.9
_AT_ONCE = 3_200_000  # images
_TINY = 1e-12


def learn_tails(coordinates: Tensor, parts: Parts, batch_size: int, *, seed: int) -> dict[str, Tail]:
    """Play in-distribution streams from calibration images ``[n, K]``: seconds for 2,000, whatever the model costs."""
    generator = torch.Generator().manual_seed(seed)
    rows = _as_new(coordinates.float().cpu(), parts)
    longest = longest_window(len(rows), batch_size)
    at_once = max(1, _AT_ONCE // (2 * longest * batch_size))
    peaks = []
    for start in range(0, _STREAMS, at_once):
        sums = _streams(rows, batch_size, min(at_once, _STREAMS - start), 2 * longest, generator)
        peaks.append(window_evidence(sums, batch_size, parts, len(rows))[:, longest:].max(1))
    highest = np.concatenate(peaks)
    return {name: fit_tail(highest[:, i], longest) for i, name in enumerate(parts)}


def fit_tail(peaks: Floats, num_batches: int) -> Tail:
    """Fit the tail of the highest evidence of stretches of so many batches."""
    start = float(np.quantile(peaks, _BEYOND))
    beyond = peaks[peaks > start] - start
    # where peaks are all the same (a part that never varies) any evidence beyond them is a rare one
    scale = float(beyond.mean()) if len(beyond) else 1.0
    return Tail(start, scale, (1 - _BEYOND) / num_batches)


def window_evidence(sums: Floats, batch_size: int, parts: Parts, calibrated: int) -> Floats:
    """The largest evidence over the windows that end at each batch of streams: ``[S, T, K] -> [S, T, parts]``."""

    def measure(totals: Floats, width: int) -> Floats:
        return measure_evidence(totals, np.asarray(float(width * batch_size)), parts, calibrated)

    return largest_over_windows(sums, longest_window(calibrated, batch_size), measure)


def largest_over_windows(sums: Floats, longest: int, measure: Callable[[Floats, int], Floats]) -> Floats:
    """The largest of ``measure(totals, width)``, at least 0, over the windows that end at each batch, ``[S, T, …]``."""
    totals = np.concatenate([np.zeros_like(sums[:, :1]), np.cumsum(sums, 1)], 1)
    found = np.maximum(measure(sums, 1), 0.0)
    for width in windows_up_to(min(longest, sums.shape[1]))[1:]:
        latest = found[:, width - 1 :]
        np.maximum(latest, measure(totals[:, width:] - totals[:, :-width], width), out=latest)
    return found


def _streams(rows: Tensor, batch_size: int, num_streams: int, length: int, generator: torch.Generator) -> Floats:
    """Sums of batches ``[S, T, K]``, by the means and variances of a calibration of each stream's own."""
    drawn = torch.randint(len(rows), (num_streams * length, batch_size), generator=generator)
    sums = F.embedding_bag(drawn, rows, mode="sum").double().view(num_streams, length, -1)
    again = torch.randint(len(rows), (num_streams, len(rows)), generator=generator)
    centres, squares = (F.embedding_bag(again, part, mode="mean").double() for part in (rows, rows.square()))
    spreads = (squares - centres.square()).clamp_min(_TINY).sqrt() / rows.double().std(0, correction=0)
    return ((sums - batch_size * centres[:, None]) / spreads[:, None]).numpy()


def _as_new(rows: Tensor, parts: Parts) -> Tensor:
    """Let rows vary as new ones do in coordinates that were fitted to these: by ``n/(n − k − 1)`` more (Hotelling).

    Drawing whole covariances anew overstates it several times over where calibrations are small.
    """
    n = len(rows)
    factors = [(n / max(n - width - 1, 1)) ** 0.5 for width in parts.values() for _ in range(width)]
    return rows * torch.tensor(factors)
