"""Our influence as an explainer of quanda, to be measured by its benchmarks beside others.

quanda's sign is the opposite of ours: it scores an example high where it *helps* the test example.
"""

from __future__ import annotations

from typing import Any

import torch
from quanda.explainers.base import Explainer
from torch import Tensor

from sgoif.api import attribute

__all__ = ["InfluenceExplainer"]


class InfluenceExplainer(Explainer):  # type: ignore[misc]
    """:func:`sgoif.attribute` for a classifier; curvature is measured anew for every batch of test examples.

    Args:
        model: the trained classifier.
        train_dataset: its training examples, ``(input, label)``.
        task: only ``"image_classification"``.
        checkpoints: files to load; the last one is explained.
        checkpoints_load_func: how to load one.
        layers: all that can be scored by default.
        **settings: further arguments of :func:`sgoif.attribute`.
    """

    accepted_tasks = ["image_classification"]  # noqa: RUF012, quanda declares a list

    def __init__(
        self,
        model: torch.nn.Module,
        train_dataset: Any,
        task: str = "image_classification",
        checkpoints: Any = None,
        checkpoints_load_func: Any = None,
        *,
        layers: Any = "all",
        **settings: Any,
    ) -> None:
        super().__init__(model, train_dataset, task, checkpoints, checkpoints_load_func)
        self.load_last_checkpoint()
        self.settings = {"layers": layers, **settings}

    def explain(self, test_data: Tensor, targets: list[int] | Tensor) -> Tensor:
        """Attribute test examples to every training example: ``[test, train]``, positive where helpful."""
        queries = (test_data, torch.as_tensor(targets))
        found = attribute(self.model, self.train_dataset, queries, as_matrix=True, **self.settings)
        return torch.from_numpy(-found.T.copy()).to(self.device)
