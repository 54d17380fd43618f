"""What predicts the class of each example without its own label: fitted to others, or predicted already."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from sgoif.judging.pool import recover_logs

__all__ = ["Head", "PredictedHead"]


class Head(Protocol):
    """A classifier that predicts each example by a fit to others."""

    name: str

    def fit(self, given: Tensor) -> Tensor:
        """Log probabilities of the given class, ``[N, C]``."""

    def refit(
        self, given: Tensor, transition: Tensor, posterior: Callable[[Tensor], Tensor], *, restart: bool
    ) -> Tensor:
        """Log probabilities of the true class, ``[N, C]``.

        Args:
            given: labels, ``[N]``.
            transition: ``P(given | true)``, ``[C, C]``.
            posterior: rows to what is believed of them, ``P(true | input, given)``, ``[n, C]``.
            restart: whether to forget earlier fits.
        """


class PredictedHead:
    """Predictions that cannot be made again: what they say of the true class is recovered from them."""

    def __init__(self, log_p: Tensor, name: str = "network") -> None:
        self.log_p, self.name = log_p, name

    def fit(self, given: Tensor) -> Tensor:
        """Log probabilities of the given class, ``[N, C]``."""
        del given
        return self.log_p

    def refit(
        self, given: Tensor, transition: Tensor, posterior: Callable[[Tensor], Tensor], *, restart: bool
    ) -> Tensor:
        """Log probabilities of the true class, ``[N, C]``."""
        del given, posterior, restart
        return recover_logs(self.log_p, transition)
