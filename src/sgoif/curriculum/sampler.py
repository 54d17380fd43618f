"""From what a monitor has seen so far to how much each example counts from here on: in the loss, or in the sampler."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Sampler

from sgoif.curriculum.weights import class_gains, draw_by_weight, example_weights
from sgoif.finish import judge_so_far
from sgoif.training.disabled import NoMonitor
from sgoif.training.monitor import Monitor
from sgoif.training.weights import Weights

__all__ = ["InfluenceSampler", "renew_weights"]


def renew_weights(monitor: Monitor, gains: NDArray[np.float64] | None) -> Weights | None:
    """Weigh every example by what was recorded of it so far; None where nothing can be said yet.

    It is the judging of a finished run, made early. The run's ``info["weights"]`` says when, and what it took.

    Args:
        monitor: which has seen them.
        gains: of the classes, from the first time.
    """
    begun = time.perf_counter()
    table = judge_so_far(monitor)
    if table is None:
        return None
    p, given = table["p_mislabeled"], table["given_label"]
    if gains is None:
        gains = class_gains(p, given, table["suggested_label"])
    weights = example_weights(p, given, gains)
    note = {"step": monitor.step_count, "seconds": time.perf_counter() - begun, "mean": float(weights.mean())}
    monitor.facts.setdefault("weights", []).append(note)
    return Weights(weights, gains)


class InfluenceSampler(Sampler[int]):
    """Draws examples by their weights, read anew at the start of each epoch; an epoch stays as long as it is.

    An example that weighs twice as much as another comes twice as often. While all weigh 1, each comes once per epoch,
    in a new order. The loss is then left unweighted, and :meth:`Monitor.step` takes no weights. The order depends on
    the seed, the epoch and the weights alone; in the middle of an epoch it is resumed by its state, which holds the
    epoch's weights: 4 bytes per example. ``StatefulDataLoader`` of torchdata saves it by itself.

    Args:
        monitor: from :func:`sgoif.watch`, with ``planned_steps``.
        ids: of the examples, in the order of the dataset: ``sgoif.with_ids(train_set).ids``.
        seed: of the order.

    >>> sorted(InfluenceSampler(NoMonitor(), ["a.jpg", "b.jpg", "c.jpg"]))  # a monitor for which all weigh the same
    [0, 1, 2]
    """

    def __init__(self, monitor: Monitor | NoMonitor, ids: Sequence[Any] | Tensor, *, seed: int = 0) -> None:
        self._monitor, self._ids, self._seed = monitor, ids, seed
        self._epoch, self._yielded = -1, 0
        self._weights = monitor.weights(ids[:0])  # refuses now what it could not do later
        self._is_resumed = False

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[int]:
        if not self._is_resumed:
            self._epoch, self._yielded = self._epoch + 1, 0
            self._weights = self._monitor.weights(self._ids).cpu()
        self._is_resumed = False
        drawn = draw_by_weight(self._weights.numpy(), np.random.default_rng((self._seed, self._epoch)))
        for position in drawn[self._yielded :]:
            self._yielded += 1
            yield int(position)

    def state_dict(self) -> dict[str, Any]:
        """Where the sampler is, in which epoch, and by which weights it goes."""
        return {"epoch": self._epoch, "yielded": self._yielded, "weights": self._weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another stood: the next iteration yields what was left of its epoch."""
        self._epoch, self._yielded = int(state["epoch"]), int(state["yielded"])
        self._weights = torch.as_tensor(state["weights"])
        self._is_resumed = self._epoch >= 0 and self._yielded < len(self)
