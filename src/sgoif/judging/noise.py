"""A model of the label noise: what predictions say of the true class, and which class is given for which."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sgoif.evidence.counts import count_sure, recover_true, scale_errors
from sgoif.judging.pool import Pool, blocks
from sgoif.types import Floats, Ints

__all__ = ["NoiseModel", "weigh"]

_SUREST, _LEAST_SUREST = 0.03, 100  # share and number of predictions whose labels are wrong by noise alone


class NoiseModel:
    """Pooled predictions, and which class is given for which.

    Args:
        pool: of predictions.
        transition: ``P(given | true)``, ``[C, C]``.
        given: labels, ``[N]``.
        is_recovered: whether the pool predicts the true class, and not the given one.
    """

    def __init__(self, pool: Pool, transition: Floats, given: Tensor, *, is_recovered: bool = False) -> None:
        self.pool, self.transition, self.given = pool, transition, given
        self.is_recovered = is_recovered
        self._noise = torch.from_numpy(transition).float()

    def of_others(self, logs: Sequence[Tensor], given: Tensor) -> NoiseModel:
        """The same for other examples, by the log probabilities that the same heads give them, ``[n, C]`` each."""
        return NoiseModel(self.pool.with_logs(logs), self.transition, given, is_recovered=self.is_recovered)

    def scaled(self, factor: float) -> NoiseModel:
        """The same with so many times the errors."""
        transition = scale_errors(self.transition, factor)
        return NoiseModel(self.pool, transition, self.given, is_recovered=self.is_recovered)

    def true(self, rows: slice | Tensor) -> Tensor:
        """``P(true | input)`` of some examples, ``[n, C]``."""
        found = self.pool.predict(rows)
        if self.is_recovered:
            return found
        return torch.from_numpy(recover_true(found.numpy(), self._noise.numpy()))

    def posterior(self, rows: slice | Tensor) -> Tensor:
        """``P(true | input, given)`` of some examples, ``[n, C]``."""
        return weigh(self.true(rows), self._noise, self.given[rows])

    def log_likelihood(self, rows: Tensor | None = None) -> Tensor:
        """Log probability of every given label, ``[N]``, or of some of them."""
        asked: list[slice | Tensor] = [*self.blocks()] if rows is None else [rows]
        parts = [(self.true(some) * self._noise[:, self.given[some]].mT).sum(1) for some in asked]
        return torch.cat(parts).double().clamp_min(1e-12).log()

    def total(self) -> float:
        """Log probability of all given labels."""
        return float(self.log_likelihood().sum())

    def predict_all(self) -> tuple[Tensor, Tensor]:
        """The most probable true class of every example, and its probability, ``[N]`` both."""
        found = [self.true(some).max(1) for some in self.blocks()]
        return torch.cat([part.indices for part in found]), torch.cat([part.values for part in found])

    def count(self) -> Ints:
        """Given labels of the surest predictions, ``[C, C]``."""
        predicted, confidence = (values.numpy() for values in self.predict_all())
        return count_sure(predicted, confidence, self.given.numpy(), self.pool.num_classes)

    def expected_accuracy(self) -> float:
        """How often the most probable class is the true one: agreement with the labels, by that of the very surest."""
        predicted, confidence = self.predict_all()
        agrees = (predicted == self.given).double()
        surest = confidence.topk(min(max(_LEAST_SUREST, int(_SUREST * len(agrees))), len(agrees))).indices
        return min(1.0, float(agrees.mean()) / max(float(agrees[surest].mean()), 1e-12))

    def class_sizes(self) -> Floats:
        """How many examples each class is believed to have, ``[C]``."""
        return torch.stack([self.posterior(some).double().sum(0) for some in self.blocks()]).sum(0).numpy()

    def blocks(self) -> list[slice]:
        """Examples that are worked on at once."""
        return list(blocks(len(self.given), self.pool.num_classes))


def weigh(true: Tensor, noise: Tensor, given: Tensor) -> Tensor:
    """``P(true | input, given)`` from ``P(true | input)``, ``[n, C]`` both."""
    joint = true * noise[:, given].mT
    return joint / joint.sum(1, keepdim=True).clamp_min(1e-12)
