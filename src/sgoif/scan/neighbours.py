"""The labels of the nearest examples as a prediction: what a plane through the features cannot say.

Nearness is the cosine of standardised features. Where there are many examples, the neighbours come from a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sgoif.scan.linear import Fold, average_folds

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
        unit = torch.nn.functional.normalize(inputs, dim=1)
        self.votes = [_search(unit, fold, number) for number, fold in enumerate(folds)]

    def fit(self, given: Tensor) -> Tensor:
        """Log probabilities of the given class, ``[N, C]``, by the labels of other examples."""

        def belief(bank: Tensor) -> Tensor:
            return torch.nn.functional.one_hot(given[bank], self.num_classes).float()

        return self._vote(belief)

    def refit(
        self, given: Tensor, transition: Tensor, posterior: Callable[[Tensor], Tensor], *, restart: bool
    ) -> Tensor:
        """Log probabilities of the true class: neighbours vote by what they probably are, ``[N, C]``."""
        del given, transition, restart
        return self._vote(posterior)

    def _vote(self, belief: Callable[[Tensor], Tensor]) -> Tensor:
        return average_folds(self._parts(belief), self.num_examples, self.num_classes)

    def _parts(self, belief: Callable[[Tensor], Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        step = max(1, _AT_ONCE * 100 // max(self.num_classes, 100))
        for found in self.votes:
            believed = belief(found.bank)
            for start in range(0, len(found.test), step):
                some = slice(start, start + step)
                votes = (
                    torch.bmm(found.weight[some, None], believed[found.near[some]])[:, 0] + _DOUBT / self.num_classes
                )
                yield found.test[some], (votes / votes.sum(1, keepdim=True)).log()


def _search(unit: Tensor, fold: Fold, seed: int) -> _Votes:
    bank = fold.train
    if len(bank) > _BANK:
        bank = bank[torch.randperm(len(bank), generator=torch.Generator().manual_seed(seed))[:_BANK]]
    count = max(1, min(_NEIGHBOURS, len(bank) // 8))
    near, weight = [], []
    others = unit[bank].mT.contiguous()
    for start in range(0, len(fold.test), _AT_ONCE):
        value, place = (unit[fold.test[start : start + _AT_ONCE]] @ others).topk(count, 1)
        near.append(place)
        weight.append(((value - value[:, :1]) / _WIDTH).exp())
    return _Votes(fold.test, bank, torch.cat(near), torch.cat(weight))
