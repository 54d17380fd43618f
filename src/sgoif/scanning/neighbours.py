"""The labels of the nearest examples as a prediction: what a plane through the features cannot say.

Nearness is the cosine of standardised features. Where there are many examples, the neighbours come from a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sgoif.judging.folds import Fold, Predictor, average_folds

__all__ = ["NeighbourHead"]

_NEIGHBOURS = 50
_WIDTH = 0.1  # difference of cosines at which a vote counts e times less
_DOUBT = 0.5  # votes that are spread over all classes
_BANK = 20_000  # examples among which neighbours are searched
_AT_ONCE = 2_000


class _Votes(NamedTuple):
    test: Tensor  # examples that are predicted, [m]
    bank: Tensor  # examples that may vote, [b]
    near: Tensor  # places in the bank, [m, k]
    weight: Tensor  # of each vote, [m, k]


class NeighbourHead:
    """Votes of the nearest neighbours among the examples of the other folds."""

    name = "neighbours"

    def __init__(self, inputs: Tensor, num_classes: int, folds: Sequence[Fold]) -> None:
        self.num_examples, self.num_classes = len(inputs), num_classes
        self.votes = [_search(inputs, fold, number) for number, fold in enumerate(folds)]
        self.bank = _unit(inputs[self.votes[0].bank])  # of the first fold, and what it was believed to be, [b, C]
        self.believed = self.first_believed = torch.zeros(0)

    def fit(self, given: Tensor) -> Tensor:
        """Log probabilities of the given class, ``[N, C]``, by the labels of other examples."""

        def belief(bank: Tensor) -> Tensor:
            return torch.nn.functional.one_hot(given[bank], self.num_classes).float()

        found = self._vote(belief)
        self.first_believed = self.believed
        return found

    def refit(
        self, given: Tensor, transition: Tensor, posterior: Callable[[Tensor], Tensor], *, restart: bool
    ) -> Tensor:
        """Log probabilities of the true class: neighbours vote by what they probably are, ``[N, C]``."""
        del given, transition, restart
        return self._vote(posterior)

    def predictor(self, *, is_refitted: bool) -> Predictor:
        """Predict further examples by neighbours among those that vote for the first fold."""
        believed, others = self.believed if is_refitted else self.first_believed, self.bank.mT.contiguous()

        def predict(inputs: Tensor) -> Tensor:
            near, weight = _find_nearest(inputs, others, self.votes[0].near.shape[1])
            return torch.cat([_count_votes(near[some], weight[some], believed) for some in self._steps(len(inputs))])

        return predict

    def _vote(self, belief: Callable[[Tensor], Tensor]) -> Tensor:
        self.believed = belief(self.votes[0].bank)
        return average_folds(self._parts(belief), self.num_examples, self.num_classes)

    def _parts(self, belief: Callable[[Tensor], Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        for found in self.votes:
            believed = belief(found.bank)
            for some in self._steps(len(found.test)):
                yield found.test[some], _count_votes(found.near[some], found.weight[some], believed)

    def _steps(self, count: int) -> Iterator[slice]:
        step = max(1, _AT_ONCE * 100 // max(self.num_classes, 100))
        return (slice(start, start + step) for start in range(0, count, step))


def _count_votes(near: Tensor, weight: Tensor, believed: Tensor) -> Tensor:
    """Log probabilities by the classes that neighbours are believed to be of, ``[n, C]``."""
    votes = torch.bmm(weight[:, None], believed[near])[:, 0] + _DOUBT / believed.shape[1]
    return (votes / votes.sum(1, keepdim=True)).log()


def _search(inputs: Tensor, fold: Fold, seed: int) -> _Votes:
    bank = fold.train
    if len(bank) > _BANK:
        bank = bank[torch.randperm(len(bank), generator=torch.Generator().manual_seed(seed))[:_BANK]]
    count = max(1, min(_NEIGHBOURS, len(bank) // 8))
    others = _unit(inputs[bank]).mT.contiguous()
    found = [_find_nearest(inputs[some], others, count) for some in fold.test.split(_AT_ONCE)]
    return _Votes(fold.test, bank, torch.cat([near for near, _ in found]), torch.cat([weight for _, weight in found]))


def _find_nearest(inputs: Tensor, others: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Places in the bank and weights of the votes of the nearest, ``[n, k]`` both."""
    near, weight = [], []
    for some in inputs.split(_AT_ONCE):
        value, place = (_unit(some) @ others).topk(count, 1)
        near.append(place)
        weight.append(((value - value[:, :1]) / _WIDTH).exp())
    return torch.cat(near), torch.cat(weight)


def _unit(inputs: Tensor) -> Tensor:
    return torch.nn.functional.normalize(inputs, dim=1)
