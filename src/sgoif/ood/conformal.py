"""Alarms at a stated rate: a new score is compared with scores of in-distribution inputs that nothing was fitted to.

If new and kept scores are exchangeable, ``p = (1 + #{kept ≥ score}) / (n + 1)`` is at most α with probability at most
α (Vovk et al. 2005), whatever the score, the model and ``n``. The promise is over both draws: one set of ``n`` kept
scores has a rate of its own, about ``sqrt(α(1 − α)/n)`` off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SgoifError

__all__ = ["Conformal"]

Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Conformal:
    """Scores of in-distribution inputs, ascending.

    >>> kept = Conformal(np.arange(1.0, 20.0))
    >>> kept.threshold(0.05), kept.p_values(np.array([0.0, 18.5, 30.0])).tolist()
    (19.0, [1.0, 0.1, 0.05])
    """

    scores: Scores  # [n]

    def threshold(self, rate: float) -> float:
        """The score above which an input is an alarm; in-distribution inputs raise one at most at the rate.

        Raises:
            SgoifError: So small a rate needs more scores.
        """
        n = len(self.scores)
        if not 0 < rate < 1:
            raise SgoifError(f"a false-alarm rate lies between 0 and 1, got {rate}.")
        allowed = math.floor(rate * (n + 1) + 1e-9)
        if allowed < 1:
            raise SgoifError(
                f"{n} images can promise a false-alarm rate of {1 / (n + 1):.2g} at best, and {rate:g} was asked for; "
                f"calibrate with {2 * math.ceil(1 / rate - 1)} images or more: half of them fit the score."
            )
        return float(self.scores[n - allowed])

    def p_values(self, scores: Scores) -> Scores:
        """The share of in-distribution inputs with a score at least as high."""
        return np.asarray((1.0 + self._above(scores)) / (len(self.scores) + 1.0), np.float64)

    def confidence(self, scores: Scores, rate: float) -> Scores:
        """How sure it is, after so few kept scores, that an input is on its side of the threshold: 0.5 is a guess.

        The true share above a score is Beta(m + 1, n − m + 1) after m of n were, whose distribution is binomial.
        """
        n = len(self.scores)
        counts = np.arange(n + 2)
        logs = np.array([math.lgamma(n + 2) - math.lgamma(k + 1) - math.lgamma(n + 2 - k) for k in counts])
        chances = np.exp(logs + counts * math.log(rate) + (n + 1 - counts) * math.log1p(-rate))
        is_rarer = np.cumsum(chances[::-1])[::-1][self._above(scores) + 1].clip(0.0, 1.0)
        return np.where(scores > self.threshold(rate), is_rarer, 1.0 - is_rarer)

    def _above(self, scores: Scores) -> NDArray[np.int64]:
        return len(self.scores) - np.searchsorted(self.scores, scores, side="left")
