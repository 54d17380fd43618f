"""Has the distribution of a stream of inputs shifted? A sequential test of means, part by part.

Every image has a few coordinates of mean 0 and variance 1 over ``n`` calibration images, in parts (how unlike it is,
its classes, its features). After each batch the last 1, 2, 4, … batches are compared with the calibration: their ``m``
images sum to ``s``, and ``T = |s|² / (m + m²/n)`` is about a χ² of the part's size while nothing has changed, for
``s/m`` is off by ``1/m`` and the calibration's own mean by ``1/n``. The second term lets a stream run forever: without
it every finite calibration raises an alarm in the end. *Evidence* is ``T`` as the exponent of a normal tail, ``z²/2``
(Wilson and Hilferty 1931), the largest over the windows.

How often in-distribution streams reach an evidence is learnt by playing them (:mod:`sgoif.shift.null_streams`), not
taken from χ².
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sgoif.errors import SgoifError
from sgoif.types import Floats

__all__ = ["Finding", "Memory", "Parts", "Tail", "find_shift", "longest_window", "measure_evidence", "windows_up_to"]

Parts = Mapping[str, int]  # the number of coordinates of each part, in their order

_REACH = 2  # longest window in calibrations: its own error is then a third of the whole, and more gains little
_LONGEST = 256  # batches: what is remembered, and played, stays small however many images calibrate


@dataclass(frozen=True, slots=True)
class Tail:
    """How often in-distribution streams reach an evidence: ``rate · exp(−(evidence − start)/scale)`` times per batch.

    >>> tail = Tail(start=2.0, scale=1.0, rate=0.01)
    >>> round(math.exp(tail.log_once_in(2.0))), round(math.exp(tail.log_once_in(3.0)))
    (100, 272)
    """

    start: float
    scale: float
    rate: float

    def log_once_in(self, evidence: float) -> float:
        """Batches after which an in-distribution stream is expected to reach this evidence, as a logarithm."""
        return (evidence - self.start) / self.scale - math.log(self.rate)


@dataclass(frozen=True, slots=True)
class Memory:
    """The latest batches, oldest first: sums of coordinates, and numbers of images."""

    sums: Floats  # [w, K]
    counts: Floats  # [w]

    @classmethod
    def empty(cls, parts: Parts) -> Memory:
        return cls(np.zeros((0, sum(parts.values()))), np.zeros(0))

    def after(self, coordinates: Floats, longest: int) -> Memory:
        """The memory after one more batch, ``[B, K]``, of which ``longest`` batches are kept."""
        sums = np.concatenate([self.sums, coordinates.sum(0, keepdims=True)])
        counts = np.append(self.counts, float(len(coordinates)))
        return Memory(sums[-longest:], counts[-longest:])


@dataclass(frozen=True, slots=True)
class Finding:
    """What the latest batches say."""

    log_once_in: Mapping[str, float]  # by part: in-distribution streams show as much once in so many batches
    window: int  # batches since the likeliest change, by the part that moved most

    @property
    def part(self) -> str:
        """The part that moved most."""
        return max(self.log_once_in, key=lambda name: self.log_once_in[name])


def find_shift(memory: Memory, parts: Parts, tails: Mapping[str, Tail], calibrated: int) -> Finding:
    """Judge the latest batches: ``O(w K)`` for a memory of ``w``.

    Alarms of any part count together, so each part has its share of the rate: what one shows once in N batches, one of
    three shows once in N/3.
    """
    totals, nums = (np.cumsum(rows[::-1], 0) for rows in (memory.sums, memory.counts))
    evidence = measure_evidence(totals, nums, parts, calibrated)  # of every window, [w, parts]
    looked_at = evidence[[width - 1 for width in windows_up_to(len(nums))]].max(0)
    rarity = [
        tails[name].log_once_in(float(e)) - math.log(len(parts)) for name, e in zip(parts, looked_at, strict=True)
    ]
    most = int(np.argmax(rarity))
    return Finding(dict(zip(parts, rarity, strict=True)), 1 + int(evidence[:, most].argmax()))


def measure_evidence(totals: Floats, nums: Floats, parts: Parts, calibrated: int) -> Floats:
    """Evidence that means moved, ``[..., parts]``: windows of ``nums`` images that sum to ``totals``, ``[..., K]``."""
    widths = np.asarray(list(parts.values()), np.float64)
    starts = np.cumsum([0, *parts.values()])[:-1]
    squares = np.add.reduceat(totals**2, starts, -1)
    ratio = squares / (nums + nums**2 / calibrated)[..., None] / widths
    spread = 2 / (9 * widths)
    z = (np.cbrt(ratio) - (1 - spread)) / np.sqrt(spread)
    return np.asarray(np.maximum(z, 0.0) ** 2 / 2)


def windows_up_to(longest: int) -> list[int]:
    """The window lengths that are looked at.

    >>> windows_up_to(11)
    [1, 2, 4, 8]
    """
    return [2**i for i in range(longest.bit_length())]


def longest_window(calibrated: int, batch_size: int) -> int:
    """Batches to remember, a power of two.

    Raises:
        SgoifError: There are fewer calibration images than in a batch.
    """
    if not 1 <= batch_size <= calibrated:
        raise SgoifError(f"batches of {batch_size} cannot be compared with {calibrated} calibration images; take more.")
    return min(_LONGEST, 1 << round(math.log2(_REACH * calibrated / batch_size)))
