"""Our influence as an attributor of dattri, to be measured by its metrics beside its own.

dattri's sign is the opposite of ours: it scores an example high where it *helps* the test example.
"""

from __future__ import annotations

from typing import Any

import torch
from dattri.algorithm.base import BaseAttributor
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler, Subset, SubsetRandomSampler, WeightedRandomSampler

from sgoif.api import attribute
from sgoif.errors import SgoifError

__all__ = ["InfluenceAttributor"]


class InfluenceAttributor(BaseAttributor):  # type: ignore[misc]
    """:func:`sgoif.attribute` for the model and checkpoints of a dattri task; the mean over checkpoints.

    Args:
        task: dattri's ``AttributionTask``. Its loss is a function of parameters and cannot be read example by example,
            so the loss is cross-entropy unless ``loss=`` says otherwise.
        layers: all that can be scored by default, as dattri's own attributors do.
        **settings: further arguments of :func:`sgoif.attribute`.
    """

    def __init__(self, task: Any, *, layers: Any = "all", **settings: Any) -> None:
        self.task, self.settings = task, {"layers": layers, **settings}
        self._num_cached: int | None = None

    def cache(self, full_train_dataloader: DataLoader[Any]) -> None:
        """Note the size of the training set; curvature is measured when it is attributed."""
        self._num_cached = len(_examples(full_train_dataloader))

    def attribute(self, train_dataloader: DataLoader[Any], test_dataloader: DataLoader[Any]) -> Tensor:
        """Attribute every test example to every training example: ``[train, test]``, positive where helpful.

        Raises:
            SgoifError: a part of the cached training set was given.
        """
        examples, queries = _examples(train_dataloader), _examples(test_dataloader)
        if self._num_cached not in (None, len(examples)):
            raise SgoifError(
                f"{self._num_cached} training examples were cached and {len(examples)} are to be attributed; attribute "
                "all of them and take the rows that you want."
            )
        model, found = self.task.get_model(), []
        for index in range(len(self.task.get_checkpoints())):
            self.task.get_param(index)  # loads the checkpoint into the model
            found.append(torch.from_numpy(-attribute(model, examples, queries, as_matrix=True, **self.settings)))
        return torch.stack(found).mean(0)


def _examples(loader: DataLoader[Any]) -> Subset[Any]:
    """The loader's examples in its order, which must not be random, without reading them."""
    if isinstance(loader.sampler, RandomSampler | SubsetRandomSampler | WeightedRandomSampler):
        raise SgoifError("the loader shuffles, so that rows would belong to nobody; pass shuffle=False.")
    return Subset(loader.dataset, list(loader.sampler))
