"""Anchors: small groups of held-out examples whose mean loss a training example may raise or lower."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from sgoif.errors import SgoifError
from sgoif.gradients import Capture, Space, combine_gradients, quiet_eval
from sgoif.tasks.classification import example_losses

__all__ = ["ClassAnchors"]


class ClassAnchors:
    """One anchor per class, from hold-out examples that are never trained on.

    Args:
        inputs: hold-out inputs, ``[M, ...]``.
        labels: their classes, ``[M]``.
        num_classes: ``K``; every class needs at least one example.
        per_class: how many examples of a class a refresh draws, without replacement.
        seed: of the draws.
    """

    def __init__(self, inputs: Tensor, labels: Tensor, num_classes: int, *, per_class: int = 25, seed: int = 0) -> None:
        counts = torch.bincount(labels, minlength=num_classes)
        empty = torch.nonzero(counts == 0).flatten().tolist()
        if empty or len(counts) > num_classes:
            raise SgoifError(
                f"every class from 0 to {num_classes - 1} needs a hold-out example; missing: {empty}, "
                f"largest label {int(labels.max())}."
            )
        self.inputs, self.labels, self.num_classes, self.per_class = inputs, labels, num_classes, per_class
        self._members = [torch.nonzero(labels == c).flatten() for c in range(num_classes)]
        self._generator = torch.Generator().manual_seed(seed)

    def draw(self) -> Tensor:
        """Positions of the next refresh's examples, class by class."""
        picks = [m[torch.randperm(len(m), generator=self._generator)[: self.per_class]] for m in self._members]
        return torch.cat(picks)

    def gradients(
        self,
        model: nn.Module,
        capture: Capture,
        spaces: Mapping[str, Space],
        forward: Callable[[Tensor], Tensor],
    ) -> dict[str, Tensor]:
        """``g_v``, the gradient of each class's mean loss on a fresh draw, by layer as ``[K, G, O, I]``.

        One eval-mode pass that leaves no trace: modes, RNG states and ``.grad`` stay as found.
        """
        picked = self.draw()
        labels = self.labels[picked]
        capture.scale, capture.num_examples = 1.0, len(picked)
        with quiet_eval(model), torch.enable_grad(), capture:
            logits = forward(self.inputs[picked])
            capture.differentiate(example_losses(logits, labels).sum())
            member = nn.functional.one_hot(labels, self.num_classes).to(torch.float32)
            return combine_gradients(capture.calls, spaces, member / member.sum(0))
